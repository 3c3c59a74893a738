r"""String formats as patterns: the texts on which all validators agree, and no others.

Each pattern is for the whole string, in what Python's and the automaton's syntax share. Where a
format has rare forms (leap seconds, IPv6 zones, comments in addresses) they are not written.
Formats that are not here are annotations, as JSON Schema says.
"""

from __future__ import annotations

__all__ = ["FORMATS"]

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = "[a-z0-9](?:-?[a-z0-9]){0,30}"
_HOST = rf"(?:{_LABEL}\.){{0,5}}[a-z](?:-?[a-z0-9]){{0,30}}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        *(
            f"(?:{_GROUP}(?::{_GROUP}){{0,{before - 1}}})?::"
            f"(?:{_GROUP}(?::{_GROUP}){{0,{6 - before}}})?"
            for before in range(1, 7)
        ),
    ]
)
_CHARACTER = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})"
_NO_COLON = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-F]{2})"
_AUTHORITY = rf"(?:{_HOST}|{_IPV4})(?::[1-9][0-9]{{0,3}})?"
_TAIL = rf"(?:\?(?:{_CHARACTER}|[/?])*)?(?:\#(?:{_CHARACTER}|[/?])*)?"
_URI = (
    rf"[a-z][a-z0-9+.-]{{0,30}}:(?://{_AUTHORITY}(?:/{_CHARACTER}*)*"
    rf"|/?{_CHARACTER}+(?:/{_CHARACTER}*)*){_TAIL}"
)
_RELATIVE = (
    rf"(?://{_AUTHORITY}(?:/{_CHARACTER}*)*|/(?:{_CHARACTER}+(?:/{_CHARACTER}*)*)?"
    rf"|{_NO_COLON}+(?:/{_CHARACTER}*)*){_TAIL}|\#{_CHARACTER}*"
)
_REFERENCE = f"{_URI}|{_RELATIVE}"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_MAILBOX = (
    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}"
    rf"(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]{{1,15}}){{0,2}}@{_HOST}"
)
_ATOM = (
    r"(?:[A-Za-z0-9 _,:;/@#%&=<>!'\"~-]|\\[dDwWsS.*+?()|\[\]{}^$/\\-]|\."
    r"|\[\^?(?:a-z|A-Z|0-9|[A-Za-z0-9_.,:]|\\[dws])+\])(?:[*+?]|\{[1-9]\})?"
)
_BRANCHES = rf"(?:{_ATOM})*(?:\|(?:{_ATOM})+)*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": (
        "P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,4}M)?(?:[0-9]{1,4}D)?"
        "|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"
        "(?:T(?:[0-9]{1,4}H(?:[0-9]{1,4}M)?(?:[0-9]{1,4}S)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?"
        "|[0-9]{1,4}S))?|T(?:[0-9]{1,4}H(?:[0-9]{1,4}M)?(?:[0-9]{1,4}S)?"
        "|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))"
    ),
    "email": _MAILBOX,
    "idn-email": _MAILBOX,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "host-name": _HOST,
    "ipv4": _IPV4,
    "ip-address": _IPV4,
    "ipv6": _IPV6,
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "uri-template": rf"{_NO_COLON}+(?:/{_CHARACTER}*|/\{{[a-z]+\}})*",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9]{{1,4}})(?:\\#|{_POINTER})",
    "regex": rf"\^?{_BRANCHES}(?:\({_BRANCHES}\)(?:[*+?])?{_BRANCHES}){{0,3}}\$?",
    "color": "#[0-9a-f]{6}",
}
"""By name; `host-name`, `ip-address` and `color` are of older drafts."""
