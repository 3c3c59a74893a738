"""What a JSON Schema may say: read whole, brought to one plain form, or refused with a reason.

    text --document--> places --expand--> facts --graph--> nodes --write--> plain schema

`facts` are the alternatives of one place: what a value of each type must satisfy. `graph` joins
the places that one value must satisfy at once, and drops what no value that ends can satisfy.
The plain schema says the same, or less, in the few words that llguidance enforces.
"""

from mmserve.constrained.schemas.facts import key_of
from mmserve.constrained.schemas.reader import JSON_OPTIONS, PlainSchema, read_schema
from mmserve.constrained.schemas.uniques import NOWHERE, Position

__all__ = ["JSON_OPTIONS", "NOWHERE", "PlainSchema", "Position", "key_of", "read_schema"]
