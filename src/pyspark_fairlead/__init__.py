"""Where Spark looks for `format("fairlead")`: every session imports each module named pyspark_*, so this one imports nothing heavy."""
