// Names for what the admin's own widgets leave without one: a screen reader says them.
"use strict";

function name(element, words) {
  if (words) element.setAttribute("aria-label", words);
}

function nameOfField(element) {
  const label = element.closest(".form-row, .fieldBox")?.querySelector("label, legend");
  return label?.textContent.trim().replace(/:$/, "") ?? "";
}

function nameAll() {
  const search = document.getElementById("searchbar");
  if (search) name(search, "Search");
  for (const hint of document.querySelectorAll("span.help-tooltip[aria-label]")) hint.setAttribute("role", "img");
  for (const part of document.querySelectorAll(".datetime input")) {
    name(part, `${nameOfField(part)}, ${part.classList.contains("vTimeField") ? "time" : "date"}`);
  }
  for (const choice of document.querySelectorAll(".select2-selection, .select2-selection__rendered[role=textbox]")) {
    name(choice, nameOfField(choice));
  }
}

// The widgets are made when the page is loaded, or by jQuery when it is ready: after those that asked before.
window.addEventListener("load", () => (window.django?.jQuery ? window.django.jQuery(nameAll) : nameAll()));
