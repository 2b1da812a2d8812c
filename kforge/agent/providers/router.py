"""Which model is asked in which role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kforge.agent.calls import Provider, Role
from kforge.agent.providers.patience import Patience
from kforge.core.errors import KforgeError

_NAMES = ("anthropic", "openai", "replay")
_EXAMPLE = "anthropic:MODEL, or analyst=anthropic:MODEL,repairer=openai:MODEL"


@dataclass(frozen=True)
class Router:
    """A provider for every role."""

    by_role: Mapping[Role, Provider]

    @classmethod
    def of(cls, provider: Provider) -> Router:
        """The same for all."""
        return cls({role: provider for role in Role})

    @classmethod
    def parse(cls, text: str, patience: Patience | None = None) -> Router:
        """From ``PROVIDER:MODEL`` for every role, ``ROLE=PROVIDER:MODEL`` for some, or both, with commas between;
        ``replay:FOLDER`` takes the whole text. Raises KforgeError.
        """
        if text.startswith("replay:"):
            return cls.of(_provider("replay", text.removeprefix("replay:"), patience))
        by_role: dict[Role, Provider] = {}
        rest: Provider | None = None
        for part in text.split(","):
            role, spec = _split(part.strip())
            name, _, model = spec.partition(":")
            provider = _provider(name, model, patience)
            if (role is None and rest is not None) or role in by_role:
                raise KforgeError(f"--agent {text} names two models for {role or 'every role'}: give one")
            if role is None:
                rest = provider
            else:
                by_role[role] = provider
        complete: dict[Role, Provider] = {}
        for role in Role:
            found = by_role.get(role, rest)
            if found is None:
                raise KforgeError(f"--agent {text} names no model for the {role}: add {role}=PROVIDER:MODEL")
            complete[role] = found
        return cls(complete)

    def provider(self, role: Role) -> Provider:
        return self.by_role[role]

    def require_keys(self) -> None:
        """Raises KforgeError where the environment holds no key for one of the providers: before anything is begun."""
        for provider in self.by_role.values():
            if missing := getattr(provider, "missing_key", lambda: "")():
                raise KforgeError(missing)

    def __str__(self) -> str:
        """As ``parse`` takes it, with every role."""
        return ",".join(f"{role}={p.name}:{p.model_for(role)}" for role, p in self.by_role.items())


def _split(part: str) -> tuple[Role | None, str]:
    """A part with or without a role; models may have a = in their names, behind the colon."""
    head, equals, spec = part.partition("=")
    if not equals or ":" in head:
        return None, part
    try:
        return Role(head), spec
    except ValueError:
        raise KforgeError(f"--agent: {head} is no role; choose among {', '.join(Role)}") from None


def _provider(name: str, model: str, patience: Patience | None) -> Provider:
    if name == "builtin":
        raise KforgeError("--agent: builtin stands for kforge's own rules, which ask no model; leave --agent away")
    if name not in _NAMES:
        raise KforgeError(f"--agent: {name or 'nothing'} is no provider; give {_EXAMPLE}")
    if not model.strip():
        raise KforgeError(f"--agent: {name} lacks a {'folder' if name == 'replay' else 'model'}; give {_EXAMPLE}")
    if name == "replay":
        from kforge.agent.providers.replay import Replay

        return Replay(Path(model))
    from kforge.agent.providers.sdk import SdkProvider

    if name == "anthropic":
        from kforge.agent.providers.anthropic_messages import Messages

        return SdkProvider(model, Messages(), patience)
    from kforge.agent.providers.openai_chat import Chat
    from kforge.agent.providers.openai_responses import Responses

    responses = Responses()
    return SdkProvider(model, responses if responses.is_openai else Chat(), patience)
