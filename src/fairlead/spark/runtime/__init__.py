"""What a Spark session needs before it is one: a Java, class data that lets it start sooner, a Python for its
workers.

Promises: no Spark is started by looking. Must not: know the broker. Start at `spark_session`.
"""
