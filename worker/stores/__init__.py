"""What the sink and the reader of one store share: tables, columns, views, files and their place."""
