"""Pages over HTTP, served by Faust's own web server.

Those for whoever watches a worker (``health``) show no record, no id and no path. The others (``pages``) show what the
sink of one export holds, to whom ``access`` lets see it.
"""
