"""`fairlead.spark.quarantine`: bad rows of any Spark job become dead letters, and return as rows after a
redrive.

`quarantining` (the public function and its task), `checks` (which rows are bad), `dead_letters` (publish
them), `row_json` (rows as JSON), `fingerprint` (the identity of a check), `returning` (redriven rows as a
stream).

Guarantees: Python touches no value of a good row; a bad row is never lost. The input may be any DataFrame;
this folder must not need rows of a queue. Start at `quarantining`.
"""
