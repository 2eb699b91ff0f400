"""The files of a RocksDB database: what RocksDB itself does not check, tell or repair.

| module          | contents                                                                                   |
|-----------------|--------------------------------------------------------------------------------------------|
| `options.py`    | how RocksDB is set                                                                         |
| `format.py`     | the directory's format number, read before RocksDB touches anything                        |
| `census.py`     | reads every record of every log before an open, and compares them with the synced mark     |
| `marks.py`      | the lock of the directory, and the mark of what was synced                                 |
| `log_format.py` | records of a log                                                                           |
| `manifest.py`   | the manifest: which tables and logs there must be                                          |
| `reserve.py`    | how much disk space is kept free, and what for                                             |
| `faults.py`     | RocksDB's errors as ours, with the file that is damaged                                    |
| `private.py`    | a private database of links to some of the tables                                          |
| `mend.py`       | a table with damaged properties, made readable                                             |
| `salvage.py`    | every row of a damaged directory that can be read                                          |

The store itself is `store/kv/rocks.py`. Must not: know a row, or a table of the port.
"""
