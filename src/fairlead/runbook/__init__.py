"""Runbooks: queues, pipelines and workers as text. Reading, checking and comparing them; nothing here touches a broker."""
