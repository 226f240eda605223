"""Both Dockerfiles built without Docker, and what is in the image: takes root and minutes."""
