"""PURGE: the method, and the targets that forgotten samples are pulled to."""
