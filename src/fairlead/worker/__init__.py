"""Workers: claim, run the steps of a pipeline, settle."""
