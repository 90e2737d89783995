"""Static shapes: a target pass as a program over fixed buffers, which a GPU captures once and replays."""
