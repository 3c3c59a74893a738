"""Reading clips: containers, packets, identities of frames, and decoders that give them.

    bytes -> container -> packets -> chain (digests)     walk (PyAV: on, or leaping)
                 |                        |              decoders  -> which of them reads a clip
                 +----------> header <----+              decord (a second library, optional)

Private to `vision.video` (headers) and `vision.frames` (pixels). PyAV and decord are used only
here. Works alike in a thread and in a child process.
"""
