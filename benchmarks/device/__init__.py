"""What one GPU does, measured on a bare machine: torch, triton and transformers, no network.

Imports `mmserve.core`, `.kernels`, `.models` and `.runner` alone: the scheduler and the engine
need packages that such a machine lacks, so plans are made by hand.

    run.sh -> run -> ceilings | kernels | equality | decode | programs -> one table, one JSON
"""
