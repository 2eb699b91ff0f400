"""The asyncio face of the client: `await fairlead.aio.connect("host:5556")`."""
