# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""A verdict for machines: JUnit XML, and GitHub's annotations and summary."""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

from tools.explain.evidence import Evidence
from tools.explain.report import causes, summary

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(path: Path, evidence: Evidence) -> None:
    """JUnit XML with one test case per check."""
    counts = {
        "tests": f"{len(evidence.checks)}",
        "failures": f"{len(evidence.failing())}",
    }
    suite = ElementTree.Element(
        "testsuite", {"name": "prefix recovery parity", **counts}
    )
    for check in evidence.checks:
        names = {"classname": "prefix_recovery_parity", "name": check.name}
        case = ElementTree.SubElement(suite, "testcase", names)
        if check.problems:
            lines = [*check.problems, "", "Likely cause:", *causes(evidence)]
            lines = [NOT_XML.sub("\ufffd", line) for line in lines]
            failure = ElementTree.SubElement(case, "failure", message=lines[0])
            failure.text = "\n".join(lines)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def annotate(evidence: Evidence, text: str) -> None:
    """Print GitHub's annotations, one a failed check and cause; append to its summary.

    Args:
        text: what the summary shows, as it was printed.
    """

    def escape(value: str) -> str:
        return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    for check in evidence.checks:
        if check.problems:
            message = f"{check.problems[0]} ({len(check.problems)} in all)"
            print(f"::error title={escape(check.name)}::{escape(message)}")
    for cause in causes(evidence):
        print(f"::error title=likely cause::{escape(cause)}")
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        bullets = [f"- **{cause}**" for cause in causes(evidence)]
        head = f"### Prefix recovery parity: {summary(evidence)}"
        lines = [head, "", *bullets, "", "```", text + "```", ""]
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines))
