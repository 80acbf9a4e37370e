"""Creates the documents of the tests in the folder that is the first argument."""

import io
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import zipfile
import zlib

FOLDER = pathlib.Path(sys.argv[1])
INTRO = "Every crate that lands is written down before it is moved."
SECOND = "Nobody signs for cargo that they have not seen."
UNICODE = "Grüße aus Ærøskøbing, naïve café."
SECRET = "The password is not in the ledger."

MARKDOWN = f"""---
title: The Harbour Ledger
---

# Landing

{INTRO} {SECOND}

{UNICODE}

## Berths

| Berth | Ship    | Cargo |
|-------|---------|-------|
| North | Amalia  | Timber |
| South | Beatrix | Wool |

- Ropes are coiled
- Lamps are lit

A note is kept.[^1]

[^1]: The note says that the tide was late.
"""

SLIDES = f"""# Arrival

{INTRO}

::: notes
Mention the tide.
:::

# Departure

| Berth | Ship   |
|-------|--------|
| North | Amalia |
"""


def path(name):
    return str(FOLDER / name)


def write(name, content):
    data = content.encode() if isinstance(content, str) else content
    (FOLDER / name).write_bytes(data)


def run(tool, *arguments, stdin=""):
    environment = dict(os.environ)
    libraries = os.environ.get(tool + "_LIBRARIES")
    if libraries:
        environment["LD_LIBRARY_PATH"] = libraries
    # The path of pandoc's templates, which differs if pandoc was unpacked and not installed.
    environment["pandoc_datadir"] = str(pathlib.Path(os.environ[tool]).parents[1] / "share/pandoc")
    return subprocess.run(
        [os.environ[tool], *arguments], input=stdin.encode(), env=environment, check=True, capture_output=True
    )


def plain_texts():
    write("plain.txt", f"The Harbour Ledger\n\n{INTRO}\n\n{UNICODE}\n")
    write("empty.txt", "")
    write("utf16.txt", f"{INTRO}\n{UNICODE}\n".encode("utf-16"))
    write("latin1.txt", f"{INTRO}\n{UNICODE}\n".encode("cp1252"))
    write("notes.md", MARKDOWN)
    write("table.csv", "berth,ship,cargo\nnorth,Amalia,timber\nsouth,Beatrix,wool\n")
    write("data.json", json.dumps({"ship": "Amalia", "greeting": UNICODE, "cargo": ["timber", "wool"]}))
    # In two parts, so that scanners do not report this file.
    write("eicar.txt", r"X5O!P%@AP[4\PZX54(P^)7CC)7}$" + "EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*")
    cyrillic = "<html><head><meta charset='windows-1251'><title>Порт</title></head><body><p>Каждый ящик записан.</p>"
    write("cyrillic.html", cyrillic.encode("cp1251"))
    write("hand.html", f"""<!DOCTYPE html><title>Ledger</title><script>var hidden = "<p>not text</p>";</script>
<style>p {{ color: red }}</style><!-- a remark --><h1>Landing &amp; leaving</h1><p>{INTRO}<p>5 &lt; 6 &nbsp;&euro;
<table><tr><td>North<td>Amalia</tr></table><pre>  kept
  as is</pre>""")


def by_pandoc():
    for name in ["report.docx", "report.odt", "report.rtf", "page.html", "book.epub"]:
        run("PANDOC", "--standalone", "--from", "markdown", "--output", path(name), stdin=MARKDOWN)
    run("PANDOC", "--from", "markdown", "--output", path("slides.pptx"), stdin=SLIDES)


def by_python_docx():
    import docx

    document = docx.Document()
    document.add_heading("Customs", level=1)
    document.add_paragraph(INTRO)
    document.add_heading("Duties", level=2)
    table = document.add_table(rows=2, cols=2)
    for row, texts in zip(table.rows, [("Tea", "4 %"), ("Salt", "9 %")]):
        for cell, text in zip(row.cells, texts):
            cell.text = text
    document.save(path("customs.docx"))


def by_python_pptx():
    from pptx import Presentation
    from pptx.util import Inches

    presentation = Presentation()
    for title, text in [("Tides", INTRO), ("Winds", SECOND)]:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
        slide.notes_slide.notes_text_frame.text = f"Remember the {title.lower()}."
    table = slide.shapes.add_table(1, 2, Inches(1), Inches(3), Inches(4), Inches(1)).table
    table.cell(0, 0).text, table.cell(0, 1).text = "West", "Strong"
    presentation.save(path("weather.pptx"))


def by_openpyxl():
    import datetime

    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Berths"
    sheet.append(["Berth", "Ship", "Since", "Fee", "Paid"])
    sheet.append(["North", "Amalia", datetime.date(2024, 3, 15), 1250.5, True])
    sheet.append(["South", UNICODE, datetime.datetime(2024, 3, 16, 12, 30), 7, False])
    other = book.create_sheet("Far away")
    other["A1"] = "near corner"
    other["XFD1048576"] = "far corner"
    book.save(path("workbook.xlsx"))


def by_odfpy():
    from odf.draw import Frame, Page, TextBox
    from odf.opendocument import OpenDocumentPresentation, OpenDocumentSpreadsheet
    from odf.style import MasterPage, PageLayout
    from odf.table import Table, TableCell, TableRow
    from odf.text import P

    book = OpenDocumentSpreadsheet()
    table = Table(name="Berths")
    for texts in [("North", "Amalia"), ("South", UNICODE)]:
        row = TableRow()
        for text in texts:
            cell = TableCell(valuetype="string")
            cell.addElement(P(text=text))
            row.addElement(cell)
        table.addElement(row)
    book.spreadsheet.addElement(table)
    book.save(path("workbook.ods"))

    slides = OpenDocumentPresentation()
    layout = PageLayout(name="layout")
    slides.automaticstyles.addElement(layout)
    master = MasterPage(name="master", pagelayoutname=layout)
    slides.masterstyles.addElement(master)
    for text in [INTRO, SECOND]:
        page, frame, box = Page(masterpagename=master), Frame(width="10cm", height="5cm"), TextBox()
        box.addElement(P(text=text))
        frame.addElement(box)
        page.addElement(frame)
        slides.presentation.addElement(page)
    slides.save(path("slides.odp"))


def pdfs():
    import typst
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate

    source = f"""#set page(width: 12cm, height: 9cm)
#set par(justify: true)
= The Harbour Ledger
{INTRO} {SECOND}

{UNICODE} The office finds efficient offices.

#table(columns: 2, [North], [Amalia], [South], [Beatrix])
#pagebreak()
A second page follows the first.
"""
    write("typst.typ", source)
    typst.compile(path("typst.typ"), output=path("typst.pdf"))
    (FOLDER / "typst.typ").unlink()

    styles = getSampleStyleSheet()
    story = [
        Paragraph("The Harbour Ledger", styles["Title"]),
        Paragraph(f"{INTRO} {SECOND}", styles["Normal"]),
        Paragraph(UNICODE, styles["Normal"]),
        PageBreak(),
        Paragraph("A second page follows the first.", styles["Normal"]),
    ]
    SimpleDocTemplate(path("reportlab.pdf")).build(story)

    locked = ["--encrypt", "user", "owner", "256", "--"]
    run("QPDF", path("typst.pdf"), *locked, path("encrypted.pdf"))
    run("QPDF", path("typst.pdf"), "--encrypt", "", "owner", "256", "--", path("owner-password.pdf"))
    run("QPDF", path("reportlab.pdf"), "--encrypt", "", "owner", "128", "--use-aes=y", "--", path("owner-password-128.pdf"))
    run("QPDF", path("typst.pdf"), "--object-streams=generate", "--linearize", path("linearized.pdf"))
    whole = (FOLDER / "reportlab.pdf").read_bytes()
    write("without-table.pdf", whole[: whole.rindex(b"xref\n") - 40])
    noise = random.Random(1).randbytes(4000)
    write("corrupted.pdf", b"%PDF-1.7\n" + noise)


def pdf(objects):
    """A PDF with these objects. The first is the catalog."""
    out = io.BytesIO()
    out.write(b"%PDF-1.7\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n" % number + body + b"\nendobj\n")
    table = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for place in places:
        out.write(b"%010d 00000 n \n" % place)
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table))
    return out.getvalue()


def stream(data, extra=b""):
    return b"<< %s /Length %d >>\nstream\n" % (extra, len(data)) + data + b"\nendstream"


def bad_pdfs():
    catalog = b"<< /Type /Catalog /Pages 2 0 R >>"
    font = b"/Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>"
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents %d 0 R /Resources << %s >> >>"
    one = b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>"
    show = b"BT /F 12 Tf 10 10 Td (x) Tj ET "

    count = 3000
    kids = b" ".join(b"%d 0 R" % (3 + index) for index in range(count))
    pages = [page % (3 + count, font)] * count
    write("page-bomb.pdf", pdf([catalog, b"<< /Type /Pages /Count %d /Kids [%s] >>" % (count, kids), *pages, stream(show)]))

    bomb = zlib.compress(b" " * 200_000_000, 9)
    flate = b"/Filter /FlateDecode"
    write("stream-bomb.pdf", pdf([catalog, one, page % (4, font), stream(bomb, flate)]))
    twice = b"/Filter [/FlateDecode /FlateDecode]"
    write("nested-bomb.pdf", pdf([catalog, one, page % (4, font), stream(zlib.compress(bomb, 9), twice)]))
    # The count of the bytes that zlib inflates does not include the run lengths. Only the memory limit applies.
    runs = b"/Filter [/FlateDecode /RunLengthDecode]"
    write("run-bomb.pdf", pdf([catalog, one, page % (4, font), stream(zlib.compress(b"\x81 " * 20_000_000 + b"\x80", 9), runs)]))

    form = b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X %d 0 R >> %s >>"
    draw = b"/XObject << /X 5 0 R >>"
    loop = [catalog, one, page % (4, draw), stream(b"/X Do"), stream(b"/X Do", form % (5, b""))]
    write("loop.pdf", pdf(loop))
    steps = [stream(b"/X Do " * 60, form % (6 + step, b"")) for step in range(6)]
    steps.append(stream(show, form % (5, font)))
    write("endless.pdf", pdf([catalog, one, page % (4, draw), stream(b"/X Do"), *steps]))
    deep = b"[" * 300_000
    write("deep.pdf", pdf([b"<< /Type /Catalog /Pages 2 0 R /Deep %s >>" % deep, one, page % (4, deep), stream(deep)]))


def archive(name, parts, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(FOLDER / name, "w", method) as out:
        for part, content in parts.items():
            out.writestr(part, content)


def repacked(source, target, changes):
    """Copies the archive and replaces some of its parts."""
    with zipfile.ZipFile(FOLDER / source) as old:
        parts = {info.filename: old.read(info) for info in old.infolist()}
    archive(target, {**parts, **changes})


def bad_archives():
    import msoffcrypto

    main = "word/document.xml"
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    begin, end = f"<w:document {space}><w:body><w:p><w:r><w:t>", "</w:t></w:r></w:p></w:body></w:document>"
    whole = (FOLDER / "report.docx").read_bytes()
    write("truncated.docx", whole[: len(whole) // 2])
    repacked("report.docx", "bomb.docx", {main: begin + "a" * 200_000_000 + end})
    false_size = (FOLDER / "bomb.docx").read_bytes()
    size = struct.pack("<I", len(begin) + 200_000_000 + len(end))
    write("lying-bomb.docx", false_size.replace(size, struct.pack("<I", 1000)))
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    bomb = f'<!DOCTYPE d [<!ENTITY e0 "ha">{entities}]>' + begin + "&e9;" + end
    repacked("report.docx", "entities.docx", {main: bomb})
    repacked("report.docx", "deep.docx", {main: begin + "<w:a>" * 100_000})
    repacked("report.docx", "unclosed.docx", {main: begin + "The end is missing"})
    with zipfile.ZipFile(FOLDER / "many.zip", "w") as out:
        for number in range(70_000):
            out.writestr(f"{number}", "")

    with open(FOLDER / "report.docx", "rb") as plain, open(FOLDER / "encrypted.docx", "wb") as locked:
        msoffcrypto.OfficeFile(plain).encrypt("password", locked)
    manifest = '<manifest:manifest xmlns:manifest="urn:m"><manifest:encryption-data/></manifest:manifest>'
    repacked("report.odt", "encrypted.odt", {"META-INF/manifest.xml": manifest, "content.xml": SECRET})
    locks = '<encryption><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes256-cbc"/></encryption>'
    repacked("book.epub", "encrypted.epub", {"META-INF/encryption.xml": locks})

    archive("archive.zip", {"readme.txt": INTRO})
    # Sets the bit "encrypted" of the entry in both headers.
    locked = bytearray((FOLDER / "archive.zip").read_bytes())
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    write("encrypted.zip", bytes(locked))
    locked = bytearray(whole)
    at = -1
    while (at := locked.find(b"PK\x03\x04", at + 1)) >= 0:
        locked[at + 6] |= 1
    at = -1
    while (at := locked.find(b"PK\x01\x02", at + 1)) >= 0:
        locked[at + 8] |= 1
    write("encrypted-parts.docx", bytes(locked))


def binaries():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(b"\0\xff\0\0\0\xff"))
    write("picture.png", b"\x89PNG\r\n\x1a\n" + header + rows + chunk(b"IEND", b""))
    write("video.mp4", b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + bytes(range(256)) * 8)
    write("program", pathlib.Path(sys.executable).resolve().read_bytes()[:20_000])
    write("noise.bin", random.Random(2).randbytes(20_000))
    name = "WordDocument".encode("utf-16-le")
    entry = name.ljust(128, b"\0")
    write("old.doc", bytes.fromhex("d0cf11e0a1b11ae1").ljust(512, b"\0") + entry + b"\0" * 384)


for step in [
    plain_texts,
    by_pandoc,
    by_python_docx,
    by_python_pptx,
    by_openpyxl,
    by_odfpy,
    pdfs,
    bad_pdfs,
    bad_archives,
    binaries,
]:
    step()
