"""Well-known formats of keys and tokens: those that their beginning gives away.

Only as much of a key is asked for as proves that it is one. What merely looks random is not looked for: hashes, ids and
base64 look so, too.
"""

from typing import Final

_WORD: Final = "[A-Za-z0-9_-]"

FORMATS: Final[dict[str, str]] = {
    "private key": "-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY",
    "JSON web token": rf"\beyJ{_WORD}{{10,512}}\.eyJ{_WORD}{{10}}",
    "Age": "AGE-SECRET-KEY-1[0-9A-Z]{58}",
    "Anthropic": rf"\bsk-ant-{_WORD}{{32}}",
    "AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "Azure storage": "AccountKey=[A-Za-z0-9+/]{86}==",
    "Cerebras": r"\bcsk-[a-z0-9]{40}",
    "Databricks": r"\bdapi[0-9a-f]{32}\b",
    "DigitalOcean": r"\bdo[opr]_v1_[0-9a-f]{64}",
    "GitHub": r"\bgh[oprsu]_[A-Za-z0-9]{36}",
    "GitHub, fine-grained": r"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    "GitLab": rf"\bglpat-{_WORD}{{20}}",
    "Google": rf"\bAIza{_WORD}{{35}}",
    "Google OAuth": rf"\bya29\.{_WORD}{{30}}",
    "Hugging Face": r"\bhf_[A-Za-z0-9]{34}",
    "npm": r"\bnpm_[A-Za-z0-9]{36}",
    "OpenAI": rf"\bsk-(?:proj-|svcacct-|admin-)?{_WORD}{{40}}",
    "PyPI": rf"\bpypi-AgEIcHlwaS5vcmc{_WORD}{{50}}",
    "SendGrid": rf"\bSG\.{_WORD}{{22}}\.{_WORD}{{43}}",
    "Shopify": r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "Slack": r"\bxox[abeoprs]-[0-9]{8,14}-[0-9A-Za-z-]{10}",
    "Slack webhook": r"hooks\.slack\.com/services/T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{24}",
    "Stripe": r"\b[rs]k_live_[0-9A-Za-z]{24}",
    "Telegram": rf"\b[0-9]{{8,10}}:AA{_WORD}{{33}}",
    "Vault": rf"\bhvs\.{_WORD}{{24}}",
}
