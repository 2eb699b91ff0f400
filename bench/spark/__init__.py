"""The data source beside one that does nothing. Start at `measure`."""
