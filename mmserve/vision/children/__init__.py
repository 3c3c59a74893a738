"""Decoders of hostile files in processes that can be limited, killed and replaced.

    decoders -> isolated -> pool -> process === socket: JSON lines === child: desk, jobs, clips
                                            === two files in memory

A child serves one job at a time, under a limit on its memory; the parent waits for it under a
limit on time. What a child sends is read as JSON and raw pixels, never as Python objects.
Called by `vision.plane` and `vision.decoding` through the port in `port`.

A child enters no package's front door, so that it starts in a fraction of the time that the
house takes.
"""
