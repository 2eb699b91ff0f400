"""Generated from `../proto`; change it there, then run `python -m fairlead.server.fila.proto.generate`."""
