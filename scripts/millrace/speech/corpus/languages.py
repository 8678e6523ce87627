"""The language of a country, where nothing else says it."""

from __future__ import annotations

from collections.abc import Mapping

# ISO 639-1 codes of the main parliamentary language, by the English name of the country.
LANGUAGES = {
    "albania": "sq",
    "andorra": "ca",
    "argentina": "es",
    "armenia": "hy",
    "australia": "en",
    "austria": "de",
    "azerbaijan": "az",
    "belarus": "be",
    "bosnia_herzegovina": "bs",
    "bosnia-herzegovina": "bs",
    "brazil": "pt",
    "bulgaria": "bg",
    "canada": "en",
    "chile": "es",
    "colombia": "es",
    "croatia": "hr",
    "cyprus": "el",
    "czechia": "cs",
    "czech_republic": "cs",
    "denmark": "da",
    "england": "en",
    "estonia": "et",
    "finland": "fi",
    "france": "fr",
    "georgia": "ka",
    "germany": "de",
    "greece": "el",
    "hungary": "hu",
    "iceland": "is",
    "ireland": "en",
    "italy": "it",
    "kosovo": "sq",
    "latvia": "lv",
    "liechtenstein": "de",
    "lithuania": "lt",
    "malta": "mt",
    "mexico": "es",
    "moldova": "ro",
    "monaco": "fr",
    "montenegro": "sr",
    "netherlands": "nl",
    "new_zealand": "en",
    "north_macedonia": "mk",
    "norway": "no",
    "poland": "pl",
    "portugal": "pt",
    "romania": "ro",
    "russia": "ru",
    "san_marino": "it",
    "scotland": "en",
    "serbia": "sr",
    "slovakia": "sk",
    "slovenia": "sl",
    "spain": "es",
    "sweden": "sv",
    "turkey": "tr",
    "uk": "en",
    "ukraine": "uk",
    "united_kingdom": "en",
    "united_states": "en",
    "usa": "en",
    "wales": "en",
}


def of(country: str, language_map: Mapping[str, str]) -> str:
    """Language code of a country: the config's `language_map`, else the table, else `und`
    (undetermined)."""
    name = country.strip().lower().replace(" ", "_")
    return language_map.get(country) or language_map.get(name) or LANGUAGES.get(name, "und")
