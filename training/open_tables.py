"""Words that learners confuse or leave out; the rest of the sentence decides which is right."""

from __future__ import annotations

_IRREGULAR = """
be was been|become became become|begin began begun|break broke broken|bring brought brought|build built built
|buy bought bought|catch caught caught|choose chose chosen|come came come|do did done|draw drew drawn
|drive drove driven|eat ate eaten|fall fell fallen|feel felt felt|fight fought fought|find found found
|fly flew flown|forget forgot forgotten|get got got|give gave given|go went gone|grow grew grown|have had had
|hear heard heard|hide hid hidden|hold held held|keep kept kept|know knew known|lead led led|leave left left
|lose lost lost|make made made|mean meant meant|meet met met|pay paid paid|ride rode ridden|rise rose risen
|run ran run|say said said|see saw seen|sell sold sold|send sent sent|shake shook shaken|show showed shown
|sing sang sung|sit sat sat|sleep slept slept|speak spoke spoken|spend spent spent|stand stood stood
|steal stole stolen|swim swam swum|take took taken|teach taught taught|tell told told|think thought thought
|throw threw thrown|understand understood understood|wake woke woken|wear wore worn|win won won
|write wrote written
"""
FORMS = [tuple(row.split()) for row in _IRREGULAR.replace("\n", "").split("|")]
"""Base form, past tense, past participle."""
FORMS_OF = {form: row for row in reversed(FORMS) for form in row}

_SWAPS = """
their there they're|your you're|its it's|to too|then than|whose who's|affect effect|loose lose|quite quiet
|were where|advice advise|accept except|weather whether|whole hole|of off|by buy|know no|here hear|right write
|threw through|passed past|peace piece|principal principle|week weak|wait weight|wear where|which witch|four for
|our are|desert dessert|breath breathe|choose chose|lead led|later latter|live leave|price prize|rise raise
|sit seat|than that|thing think|woman women|man men|child children|life live|lay lie|bring take|this these
|that those|much many|few little|less fewer|who which|good well|other another|other others|he him|she her
|they them|we us|I me|my me|their them|his him|our us|a an|anything something|anybody somebody|every all
|say tell|make do|see look|hear listen|so such|since for|till by|between among|during while|despite although
|because because_of|also too|either neither|nor or|economic economical|classic classical|historic historical
|interested interesting|bored boring|excited exciting|tired tiring|surprised surprising|confused confusing
|hard hardly|late lately|near nearly|most almost|lend borrow|learn teach|work job|travel trip|ago before
|above over|beside besides|sometime sometimes|everyday every_day|maybe may_be|already all_ready
|altogether all_together|into in to
"""


def _rows(text: str) -> list[list[str]]:
    return [[word.replace("_", " ") for word in row.split()] for row in text.split("|")]


SWAPS = _rows(_SWAPS)
QUANTITIES = _rows("this these|that those|much many|few little|less fewer|very_much very|some any|each every|all every")
DEMONSTRATIVES = _rows("this these|that those")
AMOUNTS = _rows("much many|many very_much|few little|less fewer")
PRONOUNS = _rows("he him his|she her hers|they them their|we us our|i me my|who whom|your yours|their theirs|my mine")
HOMOPHONES = _rows(
    "their there they're|your you're|its it's|to too|then than|know no|whose who's|weather wether whether|hear here"
    "|buy by bye|right write|new knew|our are|were where|wear where|loose lose|quite quiet|of off|passed past"
    "|threw through|week weak|wait weight|meat meet|see sea|one won|for four|two to|peace piece|break brake"
)
