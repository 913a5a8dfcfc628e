"""Every limit, timeout and switch of the server, with its unit, default and meaning.

Values come from flags, then the environment (`LONGLOOP_PAUSE_TTL_S=60`), then a TOML file, then these defaults.
"""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from engine.data_folder import data_folder
from engine.safety.config import PolicyList

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Bytes = Annotated[int, Field(gt=0)]


def _networks(texts: list[str]) -> list[str]:
    for text in texts:
        ip_network(text)
    return texts


NetworkList = Annotated[list[str], AfterValidator(_networks)]


def _search_url(text: str) -> str:
    if text and not (text.startswith(("http://", "https://")) and "{query}" in text):
        raise ValueError("a URL of http or https with {query} in it")
    return text


WebSearchUrl = Annotated[str, AfterValidator(_search_url)]

EventNames = Literal["openai", "open_responses"]
LifecycleName = Literal["append", "chain", "inject"]


class ModelDefaults(BaseModel):
    """What the runs of a model are given that name none of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_output_tokens: Count | None = None
    effort: str | None = None


class ModelSettings(BaseModel):
    """A model under a name of its own. What is not said is as in the settings of the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str | None = None
    model: str | None = None
    device: str | None = None
    dtype: Literal["auto", "bfloat16", "float32"] | None = None
    threads: int | None = Field(None, ge=0)
    max_kv_bytes: Bytes | None = None
    max_step_ms: Count | None = None
    family: str | None = None
    tokenizer: str | None = None
    base_url: str | None = None
    key_file: str | None = None
    context_window: int | None = Field(None, ge=0)
    token_cache: bool | None = None
    aliases: list[str] = []
    defaults: ModelDefaults = ModelDefaults()
    max_output_tokens: Count | None = None
    max_runs: Count | None = None


OF_A_BACKEND: Final = (
    "backend", "model", "device", "dtype", "threads", "max_kv_bytes", "max_step_ms", "family", "tokenizer", "base_url",
    "key_file", "context_window", "token_cache",
)  # fmt: skip
REMOTE: Final = ("cerebras", "vllm", "llamacpp", "openai")  # backends that are somebody else's HTTP API


class Settings(BaseSettings):
    """The server's settings. Suffixes are units: `_s` seconds, `_bytes`, `max_…` counts."""

    model_config = SettingsConfigDict(env_prefix="LONGLOOP_", extra="forbid", frozen=True)

    # where it listens
    host: str = Field("127.0.0.1", description="address to bind; another than loopback needs allow_remote")
    port: int = Field(8765, ge=0, le=65535, description="TCP port; 0 picks a free one")
    allow_remote: bool = Field(False, description="permit a host that is not loopback")
    allowed_origins: list[str] = Field(
        [], description="browser origins that may connect, such as http://localhost:3000"
    )
    allowed_hosts: list[str] = Field([], description="further Host header names that are ours")

    # what runs
    backend: str = Field(
        "local", description="`local`, `script:` and a scenario's name or file, or cerebras, vllm, llamacpp, openai"
    )
    model: str = Field(
        "smollm2-135m-instruct",
        description="local model: default, Hugging Face id, folder, .gguf; else the service's name for it",
    )
    device: str = Field(
        "auto", description="where the local model computes: cpu, cuda:0, or several: cuda:0,cuda:1 (a worker each)"
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="what the local model computes in; auto: bfloat16 unless a short trial speaks against it"
    )
    threads: int = Field(0, ge=0, description="threads of the local model; 0: as many as help in a short trial")
    max_kv_bytes: Bytes = Field(4 << 30, description="KV cache kept; paused and ended runs give way beyond it")
    max_step_ms: Count = Field(
        250, description="while others sample, a prompt is taken in in steps of about this; their tokens wait for one"
    )
    family: str = Field("", description="whose way of calling tools the model has; empty: the chat template tells")
    tokenizer: str = Field(
        "",
        description="of a script or a service's model: `default`, Hugging Face id, folder; none: estimates, chat route",
    )
    base_url: str = Field("", description="where the service is, /v1 included; empty: its usual place")
    key_file: str = Field("", description="file with the service's key; empty: its usual environment variable")
    context_window: int = Field(0, ge=0, description="tokens of a service's model; 0: as it or the tokenizer says")
    token_cache: bool = Field(True, description="false: the script backend renders the history each turn (benches)")
    models: dict[str, ModelSettings] = Field(
        {}, description="several models by name, each with backend, aliases, defaults, limits; the first is the default"
    )
    lifecycle: LifecycleName = Field("chain", description="lifecycle of connections that name none")
    keep_open: bool = Field(False, description="a step without calls waits for the next user message by default")
    skip_unknown_tools: bool = Field(True, description="skip tool kinds that are not supported; false refuses them")

    record_logprobs: bool = Field(
        False, description="the token log has the log-probability of every sampled token, whatever a request asks for"
    )
    event_names: EventNames = Field(
        "openai", description="whose names raw reasoning events have: reasoning_text.* or, open_responses, reasoning.*"
    )

    # how it asks a service
    upstream_connect_s: Seconds = Field(10, description="to connect to the service")
    upstream_first_token_s: Seconds = Field(120, description="from asking to the first event of the answer")
    upstream_between_tokens_s: Seconds = Field(60, description="between two events of an answer")
    upstream_total_s: Seconds = Field(1800, description="a whole turn, with everything that is tried again")
    upstream_idle_s: Seconds = Field(240, description="a kept connection that rested for longer is made anew")
    upstream_retries: int = Field(4, ge=0, description="tries of a turn after the first that may bring nothing")
    upstream_retry_s: Seconds = Field(
        1, description="a service that is not there at the start is asked again then, and then after twice as long"
    )
    max_upstream_retry_s: Seconds = Field(60, description="longest time to when it is asked again")
    upstream_max_wait_s: Seconds = Field(20, description="a longer Retry-After is passed on to the client")
    max_upstream_event_bytes: Bytes = Field(16 << 20, description="one event of an answer")
    upstream_msgpack: bool = Field(True, description="msgpack bodies, where the service is known to take them")
    upstream_gzip: bool = Field(True, description="compressed bodies, where the service is known to take them")

    # what it looks for
    policies: PolicyList = Field([], description="what is looked for in inputs and outputs, one [[policies]] each")
    safety_timeout_s: Seconds = Field(10, description="for a classifier model's verdict on one text")
    safety_fails: Literal["closed", "open"] = Field(
        "closed", description="whether what no classifier could look at ends the run, or passes and is recorded"
    )
    safety_threads: Count = Field(1, description="threads of each classifier model")
    safety_history: bool = Field(False, description="true: everything before is looked at again each turn (benches)")

    # what it keeps
    store: Literal["sqlite", "none"] = Field("sqlite", description="where stored responses and conversations go")
    data_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=data_folder, description="folder of the store, for one server at a time"
    )
    store_commit_ms: int = Field(50, ge=0, description="what is stored reaches the disk after this at the latest")
    store_wait: bool = Field(False, description="terminal events wait until what they tell of is on disk")
    max_store_backlog_bytes: Bytes = Field(256 << 20, description="what a slow disk may owe; runs beyond are not kept")
    store_retention_s: Seconds = Field(30 * 86400, description="a response that nobody went on from is deleted then")

    disk_retry_s: Seconds = Field(10, description="a disk that the store or the ledger cannot write to is tried again")

    # what it counts
    ledger: Literal["sqlite", "none"] = Field("sqlite", description="where the usage of every run is recorded")
    ledger_commit_ms: int = Field(200, ge=0, description="what is recorded reaches the disk after this at the latest")
    ledger_wait: bool = Field(False, description="a step ends only when what it used is recorded on disk")
    budget_tokens: int = Field(0, ge=0, description="tokens that all runs may use in a period; 0: no limit")
    budget_tokens_per_principal: int = Field(0, ge=0, description="tokens that the runs of one key may use in a period")
    budget_period: Literal["day", "total"] = Field("day", description="period of the budgets: a day (UTC), or for ever")
    reserved_output_tokens: Count = Field(1024, description="set aside for a run that names no max_output_tokens")

    # what it fetches for hosted tools
    fetch_hosts: list[str] = Field([], description="hosts that may be fetched, `*.` for all below; empty: all public")
    fetch_networks: NetworkList = Field(
        [], description="private networks that may be fetched from all the same, such as 10.1.0.0/16"
    )
    fetch_timeout_s: Seconds = Field(20, description="one page, with its redirects")
    max_fetch_bytes: Bytes = Field(5 << 20, description="one page, unpacked")
    max_fetch_redirects: Count = Field(5, description="redirects of one page, each judged as the first URL was")

    # what it runs itself
    tools: list[str] = Field([], description="Python modules or files with functions that responses may have called")
    offer_tools: bool = Field(False, description="true: the functions of `tools` are offered without being asked for")
    mcp_hosts: list[str] = Field(
        [], description="hosts of remote MCP servers, `*.` for all below, `*` for any; empty: there are none"
    )
    mcp_networks: NetworkList = Field([], description="private networks where MCP servers may be, such as 127.0.0.0/8")
    mcp_list_timeout_s: Seconds = Field(30, description="to list an MCP server's tools when a response starts")
    max_mcp_bytes: Bytes = Field(5 << 20, description="one answer of an MCP server")
    hosted_timeout_s: Seconds = Field(60, description="one call of a hosted tool; then it has failed")
    max_hosted_calls: Count = Field(128, description="calls of hosted tools in one response, whatever it asks for")
    max_hosted_at_once: Count = Field(64, description="calls of hosted tools that run at a time; more wait")
    max_hosted_output_chars: Count = Field(100_000, description="what a hosted call tells the model; the rest is cut")

    file_search: bool = Field(False, description="true: models may search the folders that `longloop index` has read")
    file_search_timeout_s: Seconds = Field(10, description="one search")

    web_search_url: WebSearchUrl = Field(
        "",
        description="the search provider, `{query}` for the words, such as SearXNG's "
        "http://127.0.0.1:8888/search?format=json&q={query}; empty: no web search",
    )

    # what the code interpreter may do
    code_interpreter: bool = Field(False, description="true: models may run Python in a bubblewrap sandbox")
    code_interpreter_python: str = Field("", description="its Python, perhaps with packages; empty: the machine's own")
    code_timeout_s: Seconds = Field(30, description="one program")
    code_idle_s: Seconds = Field(1200, description="the files of a run that nothing used for this long are deleted")
    max_code_output_bytes: Bytes = Field(100_000, description="output of one program")
    max_code_memory_bytes: Bytes = Field(1 << 30, description="memory of a program with all its processes")
    max_code_disk_bytes: Bytes = Field(256 << 20, description="files of one run")
    max_code_files: Count = Field(10_000, description="files of one run, in number")
    max_code_processes: int = Field(32, gt=4, description="processes and threads of a program, with 2 of the sandbox")
    max_code_programs: Count = Field(4, description="programs that run at a time; more wait")
    max_code_folders: Count = Field(256, description="runs whose files are kept; the longest unused ones go")

    # how long it waits
    pause_ttl_s: Seconds = Field(600, description="a run paused for a call's output ends after this")
    idle_ttl_s: Seconds = Field(3600, description="a kept-open run without a user message ends after this")
    lease_s: Seconds = Field(60, description="a resumable run that no connection holds is cancelled after this")
    stall_s: Seconds = Field(30, description="a reader that keeps its run waiting for this long is dropped")
    step_timeout_s: Seconds = Field(600, description="longest wait for the model's next delta")
    head_timeout_s: Seconds = Field(10, description="from connecting to a whole HTTP request head")
    body_timeout_s: Seconds = Field(60, description="to receive an HTTP body")
    linger_s: Seconds = Field(2, description="to read on after our last HTTP answer, so that the peer sees it")
    handshake_timeout_s: Seconds = Field(10, description="for the WebSocket handshake")
    http_idle_s: Seconds = Field(75, description="a kept HTTP connection without a request")
    send_timeout_s: Seconds = Field(15, description="to send one frame; then the connection closes, the run lives")
    sse_keep_alive_s: Seconds = Field(
        15, description="an event stream without an event says by a comment that it lives"
    )
    ping_every_s: Seconds = Field(20, description="between pings")
    pong_timeout_s: Seconds = Field(20, description="for the pong, while no run of the connection is paused")
    close_timeout_s: Seconds = Field(5, description="for the closing handshake")
    connection_age_s: Seconds = Field(3600, description="a connection's whole life")
    drain_s: Seconds = Field(20, description="running steps may go on for this long after SIGTERM")
    ended_ttl_s: Seconds = Field(300, description="an ended run can be resumed (read to its end) for this long")

    # how much it takes
    max_frame_bytes: Bytes = Field(64 << 20, description="one WebSocket message")
    max_body_bytes: Bytes = Field(64 << 20, description="one HTTP body")
    max_head_bytes: Bytes = Field(64 << 10, description="an HTTP request's head")
    max_json_depth: Count = Field(128, description="nesting of JSON in a frame")
    max_items: Count = Field(20_000, description="items in one input")
    max_tools: Count = Field(512, description="tools of one run")
    max_schema_bytes: Bytes = Field(
        100_000, description="a tool's definition, or text.format: to compile a schema takes the square of its length"
    )
    max_tools_bytes: Bytes = Field(1_000_000, description="all definitions of tools of one request")
    max_connections: Count = Field(1024, description="connections at a time")
    max_kept_runs: Count = Field(256, description="ended runs of HTTP that are kept ready to be gone on from")
    max_lanes: Count = Field(32, description="named lanes of one connection")
    max_in_flight: Count = Field(16, description="runs of one connection that sample at a time; more wait")
    max_queued: Count = Field(64, description="creates of one connection that wait")
    max_summary_tokens: Count = Field(512, description="tokens of the summary that a compaction makes")
    max_kept_chars: Count = Field(20_000, description="characters of user messages that a compaction keeps as they are")
    max_steers: Count = Field(16, description="steers that wait for one response")
    max_runs_per_principal: Count = Field(1024, description="open runs, paused ones included, of one key")
    max_streamed_output_chars: Count = Field(16 << 20, description="one output given in parts")
    max_log_events: Count = Field(1_000_000, description="events kept of one run; a resume from before is refused")
    high_water_events: Count = Field(4096, description="a run waits while an attached reader is this far behind")

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if message := _contradiction(self) or _contradiction_of_backends(self):
            raise PydanticCustomError("contradiction", "{message}", {"message": message})
        return self

    def of_model(self, name: str) -> Self:
        """These settings with what the model of this name says of its backend."""
        own = self.models[name].model_dump(include=set(OF_A_BACKEND), exclude_none=True)
        backend = own.get("backend", self.backend)
        if not backend.startswith("script:"):
            own = {"tokenizer": "", "token_cache": True} | own  # they are for scripts, which others may be
        if backend not in REMOTE:
            own = {"base_url": "", "key_file": "", "context_window": 0} | own
        return self.model_copy(update={"models": {}} | own)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment; the TOML file is added by `load`."""
        return (init_settings, env_settings)


def _contradiction(settings: Settings) -> str | None:
    """The first two settings that cannot both be meant, and why; None when there are none."""
    s = settings
    if s.pong_timeout_s > s.ping_every_s:
        return (
            f"pong_timeout_s ({s.pong_timeout_s:g}) is longer than ping_every_s ({s.ping_every_s:g}): "
            "the next ping would be due before the pong"
        )
    if s.high_water_events >= s.max_log_events:
        return (
            f"high_water_events ({s.high_water_events}) is not below max_log_events ({s.max_log_events}): "
            "a slow reader would lose events before the run waits for it"
        )
    if s.store_wait and s.store == "none":
        return "store_wait is set but store is none: there is nothing to wait for"
    if s.code_interpreter and s.code_timeout_s > s.hosted_timeout_s:
        return (
            f"code_timeout_s ({s.code_timeout_s:g}) is longer than hosted_timeout_s ({s.hosted_timeout_s:g}), "
            "which would end the call before"
        )
    if s.ledger == "none" and (s.ledger_wait or s.budget_tokens or s.budget_tokens_per_principal):
        name = next(n for n in ("ledger_wait", "budget_tokens", "budget_tokens_per_principal") if getattr(s, n))
        return f"{name} is set but ledger is none: there is nothing that counts"
    return None


def _contradiction_of_backends(settings: Settings) -> str | None:
    """The same of what the backends have, or the only one."""
    for name, model in settings.models.items():
        default, limit = model.defaults.max_output_tokens, model.max_output_tokens
        if default and limit and default > limit:
            return f"models.{name}: defaults.max_output_tokens ({default}) is more than max_output_tokens ({limit})"
        if message := _contradiction_of_backends(settings.of_model(name)):
            return f"models.{name}: {message}"
    s = settings
    if s.models:
        return None
    if s.backend == "openai" and s.tokenizer:
        return (
            f"tokenizer ({s.tokenizer}) is set but backend is openai, which gives no token ids: there is no use for it"
        )
    if s.tokenizer and not s.backend.startswith("script:") and s.backend not in REMOTE:
        return f"tokenizer ({s.tokenizer}) is not for backend {s.backend}: its model has its own"
    for name in ("base_url", "key_file", "context_window"):
        if getattr(s, name) and s.backend not in REMOTE:
            return f"{name} ({getattr(s, name)}) is set but backend is {s.backend}, which is no service"
    if not s.token_cache and not s.tokenizer:
        return "token_cache is off but tokenizer is empty: without a tokenizer there are no tokens to cache"
    return None


def load(file: Path | None = None, **flags: Any) -> Settings:
    """Settings from flags, the environment and `file` (TOML), in this order of precedence.

    Raises pydantic.ValidationError naming the setting, FileNotFoundError when there is no `file`.
    """
    if file is None:
        return Settings(**flags)
    if not file.expanduser().exists():  # the TOML source takes a file that is missing for an empty one
        raise FileNotFoundError(f"There is no file {file}.")

    class FromFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: Any, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (named["init_settings"], named["env_settings"], TomlConfigSettingsSource(settings_cls, file))

    return FromFile(**flags)
