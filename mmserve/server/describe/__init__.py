"""What `/openapi.json` says of the routes: fields as schemas, operations by surface.

    schema      pieces of JSON schema, and operations          (used by every surface)
    shared      fields that several surfaces read alike
    document    all surfaces, errors and keys as one OpenAPI document

A surface has one dict, `SURFACE` in its `schema.py`: path, then method, then `Operation`; it is
named in `server/surfaces.py`. A test (`tests/plan/server/test_openapi.py`) holds it to what the
parsers read: a field that only one of them knows fails.
"""
