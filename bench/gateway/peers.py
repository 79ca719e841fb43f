# SPDX-License-Identifier: Apache-2.0
"""The proxies that are compared: how each one is configured and started.

All alike as far as they let us: one process or thread that works (or two), connections to the
engines kept open, TCP_NODELAY, nothing buffered, no access log, engines in turn.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .venvs import VENVS, by_hand

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Started:
    """What to run: ``argv`` and additions to the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proxy:
    """``start`` writes the configuration into a folder; ``missing`` says why it can't be had, or
    nothing. ``rate``: requests a second that it is good for, if that is less than others'.
    ``workers``: processes or threads that work, of which ``start`` knows."""

    name: str
    start: Callable[[Path, Address, Sequence[Address]], Started]
    missing: Callable[[], str]
    rate: float | None = None
    ready_s: float = 15.0
    workers: int = 1


def nginx(directory: Path, at: Address, engines: Sequence[Address], workers: int = 1) -> Started:
    """What the engine sends goes on at once."""
    servers = "\n".join(f"    server {host}:{port};" for host, port in engines)
    temporary = "\n".join(
        f"  {name}_temp_path {directory}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = directory / "nginx.conf"
    config.write_text(
        f"""daemon off;
user root;
worker_processes {workers};
pid {directory}/nginx.pid;
error_log stderr;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  tcp_nodelay on;
{temporary}
  upstream engines {{
{servers}
    keepalive 64;
    keepalive_requests 1000000;
  }}
  server {{
    listen {at[0]}:{at[1]};
    keepalive_requests 1000000;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 300s;
    }}
  }}
}}
""",
        encoding="utf-8",
    )
    return Started(("nginx", "-c", str(config), "-p", str(directory), "-e", "stderr"))


def haproxy(
    directory: Path,
    at: Address,
    engines: Sequence[Address],
    balance: str = "roundrobin",
    workers: int = 1,
) -> Started:
    """``http-no-delay``, or it holds back what is small."""
    servers = "\n".join(f"  server e{n} {host}:{port}" for n, (host, port) in enumerate(engines, 1))
    config = directory / "haproxy.cfg"
    config.write_text(
        f"""global
  maxconn 4000
  nbthread {workers}
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  option http-no-delay
  option forwardfor
  option abortonclose
  http-reuse always
listen engines
  bind {at[0]}:{at[1]}
  balance {balance}
{servers}
""",
        encoding="utf-8",
    )
    return Started(("haproxy", "-db", "-f", str(config)))


def envoy(directory: Path, at: Address, engines: Sequence[Address], workers: int = 1) -> Started:
    """No time limit on a stream, no retries."""

    def socket_address(host: str, port: int) -> str:
        return f"{{address: {{socket_address: {{address: {host}, port_value: {port}}}}}}}"

    endpoints = ", ".join(f"{{endpoint: {socket_address(*each)}}}" for each in engines)
    manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "envoy.extensions.filters.http.router.v3.Router"
    config = directory / "envoy.yaml"
    config.write_text(
        f"""static_resources:
  listeners:
  - name: engines
    {socket_address(*at)[1:-1]}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/{manager}
          stat_prefix: engines
          generate_request_id: false
          stream_idle_timeout: 300s
          route_config:
            virtual_hosts:
            - name: engines
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: engines, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/{router}, dynamic_stats: false}}
  clusters:
  - name: engines
    type: STATIC
    lb_policy: ROUND_ROBIN
    connect_timeout: 5s
    load_assignment:
      cluster_name: engines
      endpoints: [{{lb_endpoints: [{endpoints}]}}]
""",
        encoding="utf-8",
    )
    program = _envoy() or "envoy"
    options = ("--concurrency", str(workers), "--log-level", "warn", "--disable-hot-restart")
    return Started((program, "-c", str(config), *options))


def _envoy() -> str | None:
    found = shutil.which("envoy")
    # The wheel's own program is a wrapper in Python; this is what it runs.
    inside = sorted(VENVS.glob("envoy/lib/python*/site-packages/envoy/_bin/envoy"))
    return found or (str(inside[0]) if inside else None)


def litellm(directory: Path, at: Address, engines: Sequence[Address]) -> Started:
    """One worker, without a database; its own retries and telemetry are off."""
    models = "\n".join(
        f"""  - model_name: mock
    litellm_params:
      model: openai/mock
      api_base: http://{host}:{port}/v1
      api_key: none"""
        for host, port in engines
    )
    config = directory / "litellm.yaml"
    config.write_text(
        f"""model_list:
{models}
litellm_settings:
  telemetry: false
  num_retries: 0
router_settings:
  routing_strategy: simple-shuffle
  num_retries: 0
""",
        encoding="utf-8",
    )
    program = str(VENVS / "litellm" / "bin" / "litellm")
    where = ("--host", at[0], "--port", str(at[1]), "--num_workers", "1")
    env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "DISABLE_AIOHTTP_TRANSPORT": "False",
        "NO_DOCS": "True",
    }
    return Started((program, "--config", str(config), *where), env)


def gateway_toml(at: Address, engines: Sequence[Address], workers: int = 1) -> str:
    """Our own configuration: a listener for HTTP that decides by what it knows."""
    lines = ["[[listener]]", 'name = "engines"', 'type = "http"', f'address = "{at[0]}:{at[1]}"']
    lines.append('mode = "inline"')
    lines = ["[gateway]", "access_log = false", f"workers = {workers}", *lines]
    for number, (host, port) in enumerate(engines, 1):
        lines += ["[[listener.backend]]", f'name = "e{number}"', f'address = "{host}:{port}"']
    return "\n".join(lines) + "\n"


def gateway(directory: Path, at: Address, engines: Sequence[Address], workers: int = 1) -> Started:
    """Ours."""
    return start_gateway(directory, gateway_toml(at, engines, workers))


def start_gateway(directory: Path, toml: str) -> Started:
    """How our gateway is started with a configuration."""
    config = directory / "gateway.toml"
    config.write_text(toml, encoding="utf-8")
    control = directory / "gateway.sock"
    return Started((*_GATEWAY, "--config", str(config), "--control", str(control)))


_GATEWAY = (sys.executable, "-m", "xdp_router.daemon", "gateway")


def no_gateway() -> str:
    """Why ours cannot be had, or nothing."""
    done = subprocess.run([*_GATEWAY, "--help"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "this xdp-routerd has no command 'gateway'"


def no_program(name: str) -> Callable[[], str]:
    """Why a program of the distribution cannot be had, or nothing."""
    return lambda: "" if shutil.which(name) else f"{name} was not found: sudo make bench-deps"


def _no_litellm() -> str:
    program = VENVS / "litellm" / "bin" / "litellm"
    if os.access(program, os.X_OK):
        return ""
    return f"{program} is not there: make bench gateway, or: {by_hand('litellm')}"


def _no_envoy() -> str:
    if _envoy():
        return ""
    return f"no envoy in PATH, nor in {VENVS}: make bench gateway, or: {by_hand('envoy')}"


PROXIES = (
    Proxy("nginx", nginx, no_program("nginx")),
    Proxy("HAProxy", haproxy, no_program("haproxy")),
    Proxy("Envoy", envoy, _no_envoy),
    Proxy("LiteLLM", litellm, _no_litellm, rate=15.0, ready_s=90.0),
    Proxy("xdp-router", gateway, no_gateway),
    Proxy("nginx x2", partial(nginx, workers=2), no_program("nginx"), workers=2),
    Proxy("HAProxy x2", partial(haproxy, workers=2), no_program("haproxy"), workers=2),
    Proxy("Envoy x2", partial(envoy, workers=2), _no_envoy, workers=2),
    Proxy("xdp-router x2", partial(gateway, workers=2), no_gateway, workers=2),
)
