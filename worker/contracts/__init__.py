"""What the messages of the source topics must look like, as models that JSON Schemas are made of."""
