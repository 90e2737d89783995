"""Static shapes: a pass of the target as one program over fixed buffers, which a GPU captures once and replays."""
