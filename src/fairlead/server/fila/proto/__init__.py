"""The text of fila.v1 as Protocol Buffers, and how the classes in `fairlead.server.fila.v1` come from it."""
