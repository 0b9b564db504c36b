"""Reports over what formats read: usage by day, model, provider and source, gauges, timelines, timings."""
