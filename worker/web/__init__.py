"""Pages over HTTP, served by Faust's own web server; none of them shows a record, an id or a path."""
