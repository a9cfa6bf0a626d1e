"""Whether everything in the panel has room where it is."""

from __future__ import annotations

from panel_page import PanelPage

# What scrolls by itself, or is for screen readers only, may be wider than its place.
MISFITS = """
(panel) => {
    const found = [];
    const edge = panel.getBoundingClientRect();
    const shown = (element) => element.checkVisibility() && !element.closest(".nl-unseen");
    const name = (element) => `${element.tagName}.${element.className}: ${element.textContent.slice(0, 60)}`;
    if (panel.scrollWidth > panel.clientWidth + 1) found.push(`the panel scrolls: ${panel.scrollWidth}`);
    for (const element of panel.querySelectorAll("*")) {
        if (!shown(element) || element.closest(".nl-scroll, .nl-lines, .nl-tabs, .uplot")) continue;
        const box = element.getBoundingClientRect();
        const out = box.width && (box.right > edge.right + 1 || box.left < edge.left - 1);
        if (out) found.push(`sticks out: ${name(element)}`);
    }
    for (const button of panel.querySelectorAll("button")) {
        if (!shown(button)) continue;
        const box = button.getBoundingClientRect();
        const words = document.createRange();
        words.selectNodeContents(button);
        const inside = words.getBoundingClientRect();
        if (inside.left < box.left || inside.right > box.right || button.scrollWidth > button.clientWidth + 1)
            found.push(`cut off: ${name(button)}`);
    }
    for (const element of panel.querySelectorAll(".nl-numbers *, .nl-list *:not(.nl-unseen)")) {
        const hides = getComputedStyle(element).overflowX === "hidden" && shown(element);
        if (hides && element.scrollWidth > element.clientWidth + 1) found.push(`cut off: ${name(element)}`);
    }
    const wording = "dt, th, label, button, h3, summary, .nl-position, .nl-lines";
    for (const element of panel.querySelectorAll(wording)) {
        if (!shown(element)) continue;
        const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
            const range = document.createRange();
            range.setStart(texts.currentNode, word.index);
            range.setEnd(texts.currentNode, word.index + word[0].length);
            if (range.getClientRects().length > 1) found.push(`broken word: ${word[0]}`);
        }
    }
    return found;
}
"""
TABLE_WIDER_THAN_ITS_PLACE = """
(panel) => {
    const table = panel.querySelector(".nl-numbers .nl-scroll");
    return table.scrollWidth > table.clientWidth + 1;
}
"""


def check_room(panel: PanelPage) -> None:
    """Fail if anything sticks out, is cut off, or breaks a word."""
    assert panel.region.evaluate(MISFITS) == []
    assert not panel.region.evaluate(TABLE_WIDER_THAN_ITS_PLACE)
