"""Helpers of the browser tests for pages that may change in place or reload at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

#: Seconds that a page has to show what it should. A verification gives way to whatever else the machine has to do.
PATIENCE: Final = 100
PASSING: Final = [
    ElementClickInterceptedException, ElementNotInteractableException, NoSuchElementException,
    StaleElementReferenceException,
]  # fmt: skip


def until(browser: webdriver.Chrome, condition: Callable[[webdriver.Chrome], Any]) -> Any:
    """Wait for something on a page."""
    return WebDriverWait(browser, PATIENCE, 0.1, ignored_exceptions=PASSING).until(condition)


def until_seen(browser: webdriver.Chrome, selector: str, words: str) -> str:
    """Wait until some element of a selector has these words; returns its text."""
    shown: list[str] = []

    def found(page: webdriver.Chrome) -> str | None:
        shown[:] = [element.text for element in page.find_elements(By.CSS_SELECTOR, selector)]
        return next((text for text in shown if words in text), None)

    try:
        return str(until(browser, found))
    except Exception as error:
        raise AssertionError(f"{words!r} is not in {selector} of {browser.current_url}: {shown}") from error


def until_said(browser: webdriver.Chrome, words: str) -> None:
    """Wait for a message to the operator, on this page or one before."""
    until(browser, lambda page: words in (page.execute_script("return sessionStorage.getItem('said')") or ""))


def click(browser: webdriver.Chrome, by: str, what: str) -> None:
    """Click on something as soon as it is there."""

    def clicked(page: webdriver.Chrome) -> bool:
        page.find_element(by, what).click()
        return True

    until(browser, clicked)


def type_in(browser: webdriver.Chrome, name: str, text: str) -> None:
    """Fill in a field, in place of what it has."""

    def typed(page: webdriver.Chrome) -> bool:
        field = page.find_element(By.NAME, name)
        field.clear()
        field.send_keys(text)
        return True

    until(browser, typed)


def answer_yes(browser: webdriver.Chrome, button: str) -> None:
    """Press the button of a page that asks."""
    click(browser, By.CSS_SELECTOR, f"input[type=submit][value='{button}']")


def log_in(browser: webdriver.Chrome, site: str, name: str, password: str) -> None:
    """Fill in the login form, and wait for the front page."""
    browser.get(f"{site}/admin/")
    type_in(browser, "username", name)
    type_in(browser, "password", password)
    click(browser, By.CSS_SELECTOR, "#login-form [type=submit]")
    until_seen(browser, "#user-tools", name.upper())
