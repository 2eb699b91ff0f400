# ingest.py
"""Write the orders of a Parquet file to the queue, all or none: python ingest.py orders.parquet

A second run with the same file adds nothing.
"""

import os
import sys

import fairlead.spark

server = {"endpoint": os.environ.get("FAIRLEAD_ADDR", "127.0.0.1:5554")}
file = sys.argv[1]

spark = fairlead.spark.session("ingest", short_job=True)
orders = spark.read.parquet(file)
messages = orders.selectExpr(
    "to_json(struct(order, shop, currency, amount, note)) AS payload", "shop AS fairness_key", "weight"
)
messages.write.format("fairlead").options(**server, dedupeToken=file).mode("append").save("market/orders")
print(f"{orders.count():,} orders are in the queue")
