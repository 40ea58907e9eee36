"""Checks of each page: axe-core in light and in dark, and the width of a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from selenium import webdriver

from tests.javascript import packages

THEMES: Final = ("light", "dark")
#: Pixels of a desk and of a phone.
DESK, PHONE = (1280, 900), (375, 800)
#: axe-core's impacts that hinder users of a keyboard or a screen reader, or with low vision.
GRAVE: Final = ("serious", "critical")

#: Colours change at once, so that they can be measured.
AT_ONCE = """
const sheet = new CSSStyleSheet();
sheet.replaceSync("* { transition: none !important; animation: none !important; }");
document.adoptedStyleSheets = [sheet];
"""
#: Serious findings of axe-core, one line each; the arguments are the rules to run (none: all) and impacts.
JUDGE = """
const [rules, grave, done] = arguments;
// Without a look at style sheets by themselves, for which it would need what the policy of the site forbids.
const options = {preload: false, resultTypes: ["violations"]};
if (rules.length) options.runOnly = {type: "rule", values: rules};
else options.rules = Object.fromEntries(axe._audit.rules
  .filter((rule) => rule.impact && !grave.includes(rule.impact)).map((rule) => [rule.id, {enabled: false}]));
axe.run(document, options).then((result) => done(result.violations
  .filter((one) => grave.includes(one.impact))
  .flatMap((one) => one.nodes.map((node) => `${one.id} (${one.impact}): ${node.target.join(" ")}: `
    + [...node.any, ...node.all, ...node.none].map((check) => check.message).join("; ")
    + " | " + node.html.slice(0, 160)))),
  (error) => done([String(error)]));
"""
#: Elements wider than the window: the page, or a control that nothing scrolls to.
OUTSIDE = """
const width = document.documentElement.clientWidth;
const found = [];
function scrolls(element) {
  for (let up = element.parentElement; up && up !== document.body; up = up.parentElement) {
    if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return true;
  }
  return false;
}
if (document.documentElement.scrollWidth > arguments[0]) {
  const wide = [...document.body.querySelectorAll("*")]
    .filter((one) => one.getBoundingClientRect().right + scrollX > arguments[0] + 0.5 && !scrolls(one))
    .map((one) => `${one.tagName}#${one.id}.${[...one.classList].join(".")}`);
  found.push(`page ${document.documentElement.scrollWidth} px wide: ${wide.slice(-6).join(", ")}`);
}
for (const one of document.querySelectorAll("a, button, input, select, textarea, summary")) {
  const box = one.getBoundingClientRect();
  const isOutside = box.width && box.right > arguments[0] + 0.5 && !scrolls(one);
  if (isOutside) found.push(`out of reach: ${one.outerHTML.slice(0, 120)}`);
}
return found;
"""


def set_theme(browser: webdriver.Chrome, theme: str) -> None:
    """Prefer light or dark, as a user's system does."""
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def set_size(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Show pages as a desk or a phone of so many pixels does."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def bring_axe(browser: webdriver.Chrome, config: pytest.Config) -> None:
    """Have axe-core in each page that is opened from now on."""
    place = packages(config, Path(__file__).parent / "axe")
    source = (place / "node_modules/axe-core/axe.min.js").read_text()
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})


def faults(browser: webdriver.Chrome) -> list[str]:
    """Faults of the page in the browser: findings of axe-core in light and dark, and elements cut off on a phone."""
    found: list[str] = []
    browser.execute_script(AT_ONCE)
    for theme in THEMES:
        set_theme(browser, theme)
        rules = [] if theme == "light" else ["color-contrast", "link-in-text-block"]  # the others see no colour
        said: Any = browser.execute_async_script(JUDGE, rules, GRAVE)
        found += [f"{theme}: {line}" for line in said]
    set_size(browser, *PHONE)
    found += browser.execute_script(OUTSIDE, PHONE[0])
    set_size(browser, *DESK)
    return found
