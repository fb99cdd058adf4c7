"""`popmq acl …`: users and their policies.

A secret is read from standard input, a prompt or the environment, never from an argument, which every process of the
machine could read. A secret that the command makes is shown once.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib import metadata
from typing import Any

from popclient.admin import Admin, Policy, User
from popclient.cli import OK, REFUSED
from popclient.cli.arguments import UsageError, client_config, confirm, prompted
from popclient.cli.output import hint_lines, picked, report, table_of

OFFLINE = "popmq.offline"  # the entry points for administration without a server


def add_user(arguments: Namespace) -> int:
    given = _secret(arguments)
    with _admin(arguments) as admin:
        made = admin.create_user(arguments.name, given, is_admin=arguments.admin)
    kind = "admin" if made.user.is_admin else "user"
    return _report_secret(arguments, made.user, made.secret, given, f"created {kind} {made.user.access_key}")


def rotate_secret(arguments: Namespace) -> int:
    if not confirm(arguments, f"replaces the secret of user {arguments.name}; calls with the old one are refused"):
        return REFUSED
    given = _secret(arguments)
    with _admin(arguments) as admin:
        changed = admin.rotate_secret(arguments.name, given)
    return _report_secret(
        arguments, changed.user, changed.secret, given, f"user {changed.user.access_key} has a new secret"
    )


def list_users(arguments: Namespace) -> int:
    with _admin(arguments) as admin:
        users = admin.list_users()
    lines = table_of(
        users,
        "access_key kind disabled created",
        "no users",
        kind=lambda user: "admin" if user.is_admin else "user",
        disabled="disabled_at",
        created="created_at",
    )
    return report(arguments, list(map(_user_document, users)), lines)


def disable_user(arguments: Namespace) -> int:
    with _admin(arguments) as admin:
        user = admin.disable_user(arguments.name)
    return report(arguments, _user_document(user), [f"user {user.access_key} is disabled"])


def enable_user(arguments: Namespace) -> int:
    with _admin(arguments) as admin:
        user = admin.enable_user(arguments.name)
    return report(arguments, _user_document(user), [f"user {user.access_key} is enabled"])


def remove_user(arguments: Namespace) -> int:
    with _admin(arguments) as admin:
        policies = len(admin.list_policies(arguments.name))
        if not confirm(arguments, f"removes user {arguments.name} with its policies ({policies})"):
            return REFUSED
        admin.delete_user(arguments.name)
    return report(arguments, {"access_key": arguments.name, "removed": True}, [f"removed user {arguments.name}"])


def add_policy(arguments: Namespace) -> int:
    kind, pattern, _ = arguments.resource
    with _admin(arguments) as admin:
        policy = admin.add_policy(arguments.user, arguments.effect, arguments.actions, kind, pattern)
    return report(arguments, _policy_document(policy), [f"policy {policy.id}: {_sentence(policy)}"])


def list_policies(arguments: Namespace) -> int:
    with _admin(arguments) as admin:
        policies = admin.list_policies(arguments.user or "")
    lines = table_of(
        policies,
        "policy user effect actions resource namespace created",
        "no policies",
        policy="id",
        user="access_key",
        actions=lambda policy: ",".join(policy.actions),
        resource=_resource,
        created="created_at",
    )
    return report(arguments, list(map(_policy_document, policies)), lines)


def remove_policy(arguments: Namespace) -> int:
    with _admin(arguments) as admin:
        if not confirm(arguments, f"removes policy {arguments.id}"):
            return REFUSED
        gone = admin.remove_policy(arguments.id)
    return report(arguments, _policy_document(gone), [f"removed policy {gone.id}: {_sentence(gone)}"])


def explain(arguments: Namespace) -> int:
    """Exit code 0 if the user may, 1 if not."""
    kind, name, is_assumed = arguments.resource
    action = arguments.what.upper()
    with _admin(arguments) as admin:
        answer = admin.explain_access(arguments.user, action, kind, name)
    hints = []
    if is_assumed and action == "SUB":
        hints.append(f"{name} is taken for a topic; for the consumer group of that name write group:{name}")
    policy = None if answer.policy is None else _policy_document(answer.policy)
    document = {"allowed": answer.allowed, "policy": policy, "reason": answer.reason, "hints": hints}
    report(arguments, document, [answer.reason, *hint_lines(hints)])
    return OK if answer.allowed else REFUSED


def _admin(arguments: Namespace) -> Admin:
    """The administration of a server, or of the database if its URL is given: then no server may run on it."""
    config = client_config(arguments)
    if not arguments.database_url:
        return Admin(config)
    found = metadata.entry_points(group=OFFLINE, name="admin")
    if not found:
        raise ModuleNotFoundError(name="popserver")
    return Admin(config, transport=next(iter(found)).load()(arguments.database_url, config.namespace))


def _secret(arguments: Namespace) -> str | None:
    """The secret from the source in `--secret-from`; None: the command makes one."""
    source: str | None = arguments.secret_from
    if source is None:
        return None
    if source == "stdin":
        return sys.stdin.readline().rstrip("\r\n")
    if source == "prompt":
        return _prompted()
    name = source.removeprefix("env:")
    if name not in os.environ:
        raise UsageError(f"the environment has no {name}; set it to the secret")
    return os.environ[name]


def _prompted() -> str:
    otherwise = "give --secret-from stdin or --secret-from env:NAME"
    first = prompted("secret: ", otherwise)
    if prompted("again: ", otherwise) != first:
        raise UsageError("the two secrets differ; nothing was changed")
    return first


def _report_secret(arguments: Namespace, user: User, secret: str, given: str | None, done: str) -> int:
    """Shows the secret only if the command has made it."""
    if given is not None:
        return report(arguments, _user_document(user), [done])
    document = {**_user_document(user), "secret": secret}
    return report(arguments, document, [done, f"its secret, which is shown only now: {secret}"])


def _sentence(policy: Policy) -> str:
    within = f" in namespace {policy.namespace}" if policy.namespace else ""
    return f"{policy.effect} {','.join(policy.actions)} {_resource(policy)}{within} for {policy.access_key}"


def _resource(policy: Policy) -> str:
    return f"{policy.resource_kind.lower()}:{policy.pattern}"


def _user_document(user: User) -> dict[str, Any]:
    return picked(user, "access_key is_admin disabled_at created_at")


def _policy_document(policy: Policy) -> dict[str, Any]:
    return picked(policy, "id access_key effect actions resource_kind namespace pattern created_at")
