"""The `maxup` command, one verb per file. It needs the lab."""
