"""Starting a Spark session: Java, class data for a faster start, and the Python of its workers.

`spark_session` makes the session; `java` finds a Java and its launcher; `worker_python` is the launcher of
Python workers; `class_data` and `training` make an archive of Spark's classes; `installed` checks packages;
`user_cache` keeps files for all sessions of a user.

Guarantee: a check starts no Spark. This folder must not know the broker. Start at `spark_session`.
"""
