"""What schemathesis cannot know of our API."""

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx, value):
    """Generated texts are sent as they are."""
    return value if isinstance(value, bytes) else str(value).encode()
