"""The native wire format, and routes that help its clients."""
