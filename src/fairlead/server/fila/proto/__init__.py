"""The Protocol Buffers source of fila.v1, and the generator of the classes in `fairlead.server.fila.v1`."""
