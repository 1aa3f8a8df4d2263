//! Objects of another interpreter: strings, numbers, code, frames, and values as short text. Where things are is said by the tables of
//! offsets that Python 3.14 and later carry in their own memory, and is known of each version before. Nothing of the process runs: a
//! value whose class has a `__repr__` is shown by its type.

use std::{collections::HashMap, io};

use super::{
    Frame, Local, MAX_LOCALS, MAX_NAME_CHARS, MAX_VALUE_CHARS, Options,
    memory::{Memory, word_at},
    plain,
};

const WORD: u64 = 8;
/// References on an interpreter's stack carry a tag in their lowest bits.
const TAG_BITS: u64 = 3;
const MAX_TABLE_BYTES: usize = 64 * 1024;
const MAX_STRING_CHARS: u64 = 4096;
/// Of containers within containers.
const MAX_DEPTH: u32 = 3;
const MAX_ITEMS: u64 = 6;

const IS_LONG: u64 = 1 << 24;
const IS_LIST: u64 = 1 << 25;
const IS_TUPLE: u64 = 1 << 26;
const IS_BYTES: u64 = 1 << 27;
pub const IS_STRING: u64 = 1 << 28;
const IS_DICT: u64 = 1 << 29;
const IS_CLASS: u64 = 1 << 31;
/// Entries of a dictionary that are looked at for those that are shown: some may be empty.
const MAX_ENTRIES: u64 = 64;
/// Of a chain of frames, and of the threads of a process.
const MAX_FRAMES: usize = 4096;
const MAX_THREADS: usize = 4096;

/// Kinds of a name among a function's variables.
const HIDDEN: u8 = 0x10;
const IN_CELL: u8 = 0x40 | 0x80;

/// Where things are in an interpreter of one minor version.
#[derive(Debug, Clone)]
pub struct Layout {
    pub minor: u64,
    words: Vec<u64>,
    /// How far the sections that follow `thread_state`, `type_object`, `unicode_object` have moved since 3.14.
    moved: [usize; 3],
}

/// Where the table is, and how many words it has.
const COOKIE: &[u8; 8] = b"xdebugpy";
const MAX_TABLE_WORDS: usize = 111;
const WORDS_OF_3_14: usize = 95;

/// Fields by their place in the table of 3.14.
#[derive(Debug, Clone, Copy)]
pub enum At {
    InterpretersHead = 5,
    InterpreterNext = 8,
    ThreadsHead = 9,
    ThreadNext = 24,
    ThreadCurrentFrame = 26,
    ThreadId = 27,
    FramePrevious = 32,
    FrameExecutable = 33,
    FrameInstruction = 34,
    FrameLocals = 35,
    FrameOwner = 36,
    FrameStackPointer = 37,
    CodeFile = 40,
    CodeQualifiedName = 42,
    CodeLineTable = 43,
    CodeFirstLine = 44,
    CodeLocalNames = 46,
    CodeLocalKinds = 47,
    CodeInstructions = 48,
    ObjectSize = 50,
    ObjectType = 51,
    TypeName = 53,
    TypeFlags = 55,
    TupleItems = 57,
    TupleSize = 58,
    ListItems = 60,
    ListSize = 61,
    SetUsed = 63,
    SetTable = 64,
    SetMask = 65,
    DictKeys = 67,
    DictValues = 68,
    FloatValue = 70,
    LongTag = 72,
    LongDigits = 73,
    BytesSize = 75,
    BytesStart = 76,
    StringSize = 77,
    StringState = 78,
    StringLength = 79,
    StringAsciiSize = 80,
    CoroutineFrame = 85,
    CoroutineState = 86,
}

impl Layout {
    /// Reads the table at the beginning of the interpreter's own section. The error says why it is of no use.
    pub fn read(memory: Memory, runtime: u64) -> Result<Self, String> {
        let read = |count: usize| memory.bytes(runtime, count * 8).map_err(|error| error.to_string());
        let bytes = read(MAX_TABLE_WORDS)?;
        if &bytes[..8] != COOKIE {
            return Err("the interpreter has no table of its own layout".to_owned());
        }
        Self::from_words((0..MAX_TABLE_WORDS).map(|index| word_at(&bytes, index * 8)).collect())
    }

    /// Where things are in the versions before that, on machines of 64 bits.
    pub fn known(minor: u64) -> Option<Self> {
        let ascii = if minor < 12 { 48 } else { 40 };
        let wide = if minor < 12 { 80 } else { 64 };
        let head = *[8, 8, 8, 16, 72, 7344].get(usize::try_from(minor.checked_sub(8)?).ok()?)?;
        let (frame, thread_id) = match minor {
            8..=10 => (24, 176),
            11 => (56, 152),
            12 => (56, 136),
            _ => (72, 152),
        };
        let (previous, code, locals, owner) = match minor {
            8 | 9 => (24, 32, 360, 0),
            10 => (24, 32, 352, 0),
            11 => (48, 32, 72, 69),
            _ => (8, 0, 72, 70),
        };
        let (file, name) = if minor < 11 { (104, 112) } else { (112, 128) };
        let mut words = vec![0; MAX_TABLE_WORDS];
        for (field, offset) in [
            (At::ThreadsHead, head),
            (At::ThreadNext, 8),
            (At::ThreadCurrentFrame, frame),
            (At::ThreadId, thread_id),
            (At::FramePrevious, previous),
            (At::FrameExecutable, code),
            (At::FrameLocals, locals),
            (At::FrameOwner, owner),
            (At::CodeFile, file),
            (At::CodeQualifiedName, name),
            (At::CodeLocalNames, 96),
            (At::CodeLocalKinds, 104),
            (At::ObjectSize, 16),
            (At::ObjectType, 8),
            (At::TypeName, 24),
            (At::TypeFlags, 168),
            (At::TupleItems, 24),
            (At::TupleSize, 16),
            (At::ListItems, 24),
            (At::ListSize, 16),
            (At::DictKeys, 32),
            (At::DictValues, 40),
            (At::FloatValue, 16),
            (At::LongTag, 16),
            (At::LongDigits, 24),
            (At::BytesSize, 16),
            (At::BytesStart, 32),
            (At::StringSize, wide),
            (At::StringState, 32),
            (At::StringLength, 16),
            (At::StringAsciiSize, ascii),
        ] {
            words[field as usize] = offset;
        }
        Some(Self { minor, words, moved: [0; 3] })
    }

    fn from_words(words: Vec<u64>) -> Result<Self, String> {
        let (version, free_threaded) = (words[1], words[2]);
        if free_threaded != 0 {
            return Err("the interpreter is a free-threaded one".to_owned());
        }
        let (minor, moved) = match (version >> 24, version >> 16 & 0xff) {
            (3, 14) => (14, [0; 3]),
            (3, 15) => (15, [8, 12, 16]),
            (major, minor) => return Err(format!("the layout of Python {major}.{minor} is not known")),
        };
        let layout = Self { minor, words, moved };
        // An offset that leads out of any object is no offset.
        let last = if minor == 14 { WORDS_OF_3_14 } else { MAX_TABLE_WORDS };
        if layout.words[3..last].iter().any(|offset| *offset > 1 << 24) {
            return Err("the interpreter's table of its own layout makes no sense".to_owned());
        }
        Ok(layout)
    }

    pub fn offset(&self, field: At) -> u64 {
        let at = field as usize;
        let moved = match at {
            0..=26 => 0,
            // Two new fields are before it in 3.15.
            27 if self.minor == 15 => 2,
            27..=55 => self.moved[0],
            56..=80 => self.moved[1],
            _ => self.moved[2],
        };
        self.words[at + moved]
    }
}

/// An interpreter's objects.
#[derive(Debug)]
pub struct Objects {
    pub memory: Memory,
    pub layout: Layout,
}

/// What is known of a coroutine or generator that was entered or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoroutineState {
    NotStarted,
    Suspended,
    /// In another coroutine, which is on top of its stack.
    Awaiting,
    Running,
    Ended,
}

impl Objects {
    /// The field of an object, as a number.
    pub fn field(&self, object: u64, field: At) -> io::Result<u64> {
        self.memory.word(object.wrapping_add(self.layout.offset(field)))
    }

    /// The field of an object that holds another.
    pub fn pointer(&self, object: u64, field: At) -> io::Result<u64> {
        Ok(self.field(object, field)? & !TAG_BITS)
    }

    pub fn type_of(&self, object: u64) -> io::Result<u64> {
        self.pointer(object, At::ObjectType)
    }

    pub fn type_flags(&self, object: u64) -> io::Result<u64> {
        self.field(self.type_of(object)?, At::TypeFlags)
    }

    pub fn type_name(&self, object: u64) -> io::Result<String> {
        let name = self.memory.text(self.field(self.type_of(object)?, At::TypeName)?, 100)?;
        Ok(plain(&name, 100))
    }

    /// The beginning of a string, and whether it goes on.
    fn string_part(&self, object: u64, max_chars: u64) -> io::Result<(String, bool)> {
        let length = self.field(object, At::StringLength)?;
        let count = length.min(max_chars);
        let state = self.memory.byte(object.wrapping_add(self.layout.offset(At::StringState)))?;
        // Two bits say whether it is interned, three are the width of a character, then compact and ASCII.
        let (width, compact, ascii) = (u64::from(state >> 2 & 7), state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        if !matches!(width, 1 | 2 | 4) {
            return Err(io::Error::other("no string"));
        }
        let whole = object.wrapping_add(self.layout.offset(At::StringSize));
        let start = match (compact, ascii) {
            (true, true) => object.wrapping_add(self.layout.offset(At::StringAsciiSize)),
            (true, false) => whole.wrapping_sub(WORD),
            // Of a class derived from `str`: its characters are elsewhere.
            (false, _) => self.memory.word(whole.wrapping_sub(WORD))?,
        };
        let bytes = usize::try_from(count * width).map_err(io::Error::other)?;
        let bytes = self.memory.bytes(start, bytes)?;
        let text = match width {
            1 => bytes.iter().map(|byte| char::from(*byte)).collect(),
            2 => char::decode_utf16(bytes.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])))
                .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect(),
            _ => bytes
                .chunks_exact(4)
                .map(|unit| u32::from_ne_bytes([unit[0], unit[1], unit[2], unit[3]]))
                .map(|unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect(),
        };
        Ok((text, length > count))
    }

    pub fn string(&self, object: u64) -> io::Result<String> {
        Ok(self.string_part(object, MAX_STRING_CHARS)?.0)
    }

    /// An integer, if it fits.
    pub fn integer(&self, object: u64) -> io::Result<Option<i128>> {
        let tag = self.field(object, At::LongTag)?;
        // Before 3.12 it is the number of digits, with the sign of the value.
        let (count, negative) = if self.layout.minor < 12 {
            (tag.cast_signed().unsigned_abs(), tag.cast_signed() < 0)
        } else {
            (tag >> 3, tag & 3 == 2)
        };
        let count = usize::try_from(count).map_err(io::Error::other)?;
        if count > 4 {
            return Ok(None);
        }
        let digits = self.memory.bytes(object.wrapping_add(self.layout.offset(At::LongDigits)), count * 4)?;
        let digits = digits.chunks_exact(4).map(|digit| u32::from_ne_bytes([digit[0], digit[1], digit[2], digit[3]]));
        let value = digits.enumerate().fold(0, |value, (index, digit)| value | i128::from(digit) << (30 * index));
        Ok(Some(if negative { -value } else { value }))
    }

    /// A value as a short text: what `repr` says of plain ones, the type of all others.
    pub fn shown(&self, object: u64) -> String {
        self.shown_at(object, 0).map_or_else(|_| "?".to_owned(), |text| plain(&text, MAX_VALUE_CHARS))
    }

    fn shown_at(&self, object: u64, depth: u32) -> io::Result<String> {
        let name = self.type_name(object)?;
        let flags = self.type_flags(object)?;
        let text = match name.as_str() {
            "NoneType" => "None".to_owned(),
            "bool" => if self.integer(object)? == Some(0) { "False" } else { "True" }.to_owned(),
            "float" => {
                let value = f64::from_bits(self.field(object, At::FloatValue)?);
                float_shown(&format!("{value:?}"), &format!("{value:e}"))
            }
            "int" => match self.integer(object)? {
                Some(value) => value.to_string(),
                None => "<a large int>".to_owned(),
            },
            _ if flags & IS_STRING != 0 => {
                let (text, cut) = self.string_part(object, MAX_VALUE_CHARS as u64)?;
                let text = text.replace('\\', "\\\\").replace('"', "\\\"");
                of_class("str", &name, format!("\"{text}\"{}", if cut { "…" } else { "" }))
            }
            _ if flags & IS_BYTES != 0 => format!("<{name} of {} bytes>", self.field(object, At::BytesSize)?),
            _ if flags & IS_TUPLE != 0 => {
                let items = object.wrapping_add(self.layout.offset(At::TupleItems));
                let size = self.field(object, At::TupleSize)?;
                let comma = if size == 1 { "," } else { "" };
                of_class("tuple", &name, format!("({}{comma})", self.items_shown(items, size, depth)?))
            }
            _ if flags & IS_LIST != 0 => {
                let items = self.field(object, At::ListItems)?;
                let size = self.field(object, At::ListSize)?;
                of_class("list", &name, format!("[{}]", self.items_shown(items, size, depth)?))
            }
            _ if flags & IS_DICT != 0 => of_class("dict", &name, format!("{{{}}}", self.pairs_shown(object, depth)?)),
            _ if flags & IS_CLASS != 0 => {
                let class = self.memory.text(self.field(object, At::TypeName)?, 100)?;
                format!("<class '{}'>", plain(&class, 100))
            }
            _ if flags & IS_LONG != 0 => format!("<{name} {}>", self.integer(object)?.unwrap_or(0)),
            _ => match self.numpy_scalar(&name, object)? {
                Some(text) => text,
                None => format!("<{name} at {object:#x}>"),
            },
        };
        Ok(text)
    }

    /// A number of numpy's, which lies behind the head of its object.
    fn numpy_scalar(&self, name: &str, object: u64) -> io::Result<Option<String>> {
        let Some(kind) = name.strip_prefix("numpy.") else { return Ok(None) };
        let bytes: [u8; 8] = self.memory.array(object.wrapping_add(self.layout.offset(At::ObjectSize)))?;
        let [a, b, c, d, ..] = bytes;
        Ok(Some(match kind {
            "bool" | "bool_" => if a == 0 { "False" } else { "True" }.to_owned(),
            "uint8" => a.to_string(),
            "int8" => a.cast_signed().to_string(),
            "uint16" => u16::from_ne_bytes([a, b]).to_string(),
            "int16" => i16::from_ne_bytes([a, b]).to_string(),
            "uint32" => u32::from_ne_bytes([a, b, c, d]).to_string(),
            "int32" => i32::from_ne_bytes([a, b, c, d]).to_string(),
            "uint64" => u64::from_ne_bytes(bytes).to_string(),
            "int64" => i64::from_ne_bytes(bytes).to_string(),
            "float32" => {
                let value = f32::from_ne_bytes([a, b, c, d]);
                float_shown(&format!("{value:?}"), &format!("{value:e}"))
            }
            "float64" => {
                let value = f64::from_ne_bytes(bytes);
                float_shown(&format!("{value:?}"), &format!("{value:e}"))
            }
            _ => return Ok(None),
        }))
    }

    /// The first pairs of a dictionary.
    fn pairs_shown(&self, dict: u64, depth: u32) -> io::Result<String> {
        let keys = self.field(dict, At::DictKeys)?;
        let values = self.field(dict, At::DictValues)?;
        let (count, entries, width) = if self.layout.minor < 11 {
            let size = self.memory.word(keys.wrapping_add(8))?;
            let index = match size {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                _ => 4,
            };
            (self.memory.word(keys.wrapping_add(32))?, keys.wrapping_add(40).wrapping_add(size.wrapping_mul(index)), 3)
        } else {
            let [_, index, kind, ..]: [u8; 4] = self.memory.array(keys.wrapping_add(8))?;
            let width = if kind == 0 { 3 } else { 2 };
            let indices = 1_u64.checked_shl(index.into()).unwrap_or(0);
            (self.memory.word(keys.wrapping_add(24))?, keys.wrapping_add(32).wrapping_add(indices), width)
        };
        if depth == MAX_DEPTH {
            return Ok(if count == 0 { "" } else { "…" }.to_owned());
        }
        // From 3.13 on, values that are apart from their keys have a head.
        let values = if values != 0 && self.layout.minor >= 13 { values + WORD } else { values };
        let (mut shown, mut more) = (Vec::new(), count > MAX_ENTRIES);
        for index in 0..count.min(MAX_ENTRIES) {
            let entry = entries.wrapping_add(index * width * WORD);
            let key = self.memory.word(entry.wrapping_add((width - 2) * WORD))?;
            let value =
                if values == 0 { entry.wrapping_add((width - 1) * WORD) } else { values.wrapping_add(index * WORD) };
            let value = self.memory.word(value)?;
            if key == 0 || value == 0 {
                continue;
            }
            if shown.len() as u64 == MAX_ITEMS {
                more = true;
                break;
            }
            shown.push(format!("{}: {}", self.shown_at(key, depth + 1)?, self.shown_at(value, depth + 1)?));
        }
        shown.extend(more.then(|| "…".to_owned()));
        Ok(shown.join(", "))
    }

    fn items_shown(&self, items: u64, size: u64, depth: u32) -> io::Result<String> {
        if depth == MAX_DEPTH {
            return Ok(if size == 0 { "" } else { "…" }.to_owned());
        }
        let shown = (0..size.min(MAX_ITEMS)).map(|index| {
            let item = self.memory.word(items.wrapping_add(index * WORD))? & !TAG_BITS;
            self.shown_at(item, depth + 1)
        });
        let mut shown = shown.collect::<io::Result<Vec<_>>>()?;
        if size > MAX_ITEMS {
            shown.push(format!("… {size} in all"));
        }
        Ok(shown.join(", "))
    }

    /// What an interpreter's frame is in, if it is one of Python code. With its line, which is told from 3.14 on.
    pub fn frame(&self, frame: u64, options: Options) -> io::Result<Option<Frame>> {
        let Some((code, mut told)) = self.place(frame)? else { return Ok(None) };
        let start = code.wrapping_add(self.layout.offset(At::CodeInstructions));
        let instruction = self.field(frame, At::FrameInstruction)?.wrapping_sub(start);
        let first = self.memory.array(code.wrapping_add(self.layout.offset(At::CodeFirstLine)))?;
        let table = self.bytes_object(self.pointer(code, At::CodeLineTable)?)?;
        told.line = line_at(&table, i32::from_ne_bytes(first).into(), instruction);
        if options.locals {
            (told.locals, told.more_locals) = self.locals(frame, code).unwrap_or_default();
        }
        (told.function, told.file) = (plain(&told.function, MAX_NAME_CHARS), plain(&told.file, MAX_NAME_CHARS));
        Ok(Some(told))
    }

    /// The code of a frame and what it is called.
    fn place(&self, frame: u64) -> io::Result<Option<(u64, Frame)>> {
        const OF_INTERPRETER: u8 = 3;
        let owner = self.layout.offset(At::FrameOwner);
        let code = self.pointer(frame, At::FrameExecutable)?;
        let is_interpreters = owner != 0 && self.memory.byte(frame.wrapping_add(owner))? >= OF_INTERPRETER;
        if is_interpreters || code == 0 || self.type_name(code)? != "code" {
            return Ok(None);
        }
        let function = self.string(self.pointer(code, At::CodeQualifiedName)?)?;
        let file = self.string(self.pointer(code, At::CodeFile)?)?;
        Ok(Some((code, Frame { function, file, ..Frame::default() })))
    }

    /// The frames of every thread of an interpreter, innermost first, without lines: what `threads` compares with what it has read.
    pub fn thread_frames(&self, interpreter: u64) -> HashMap<u64, Vec<Frame>> {
        let mut found = HashMap::new();
        let mut thread = self.field(interpreter, At::ThreadsHead).unwrap_or(0);
        for _ in 0..MAX_THREADS {
            if thread == 0 {
                break;
            }
            // One that changed while it was read is not told of, and the others are.
            if let (Ok(id), Ok(frames)) = (self.field(thread, At::ThreadId), self.frames_of(thread)) {
                found.insert(id, frames);
            }
            thread = self.field(thread, At::ThreadNext).unwrap_or(0);
        }
        found
    }

    fn frames_of(&self, thread: u64) -> io::Result<Vec<Frame>> {
        let mut frame = self.field(thread, At::ThreadCurrentFrame)?;
        // There the field leads to a record that holds the frame.
        match self.layout.minor {
            11 => frame = self.memory.word(frame.wrapping_add(WORD))?,
            12 => frame = self.memory.word(frame)?,
            _ => {}
        }
        let mut frames = Vec::new();
        for _ in 0..MAX_FRAMES {
            if frame == 0 {
                break;
            }
            if let Some((code, mut told)) =
                self.place(frame)?.filter(|(_, told)| !told.file.is_empty() && told.file != "<shim>")
            {
                (told.locals, told.more_locals) = self.locals(frame, code)?;
                frames.push(told);
            }
            frame = self.field(frame, At::FramePrevious)?;
        }
        Ok(frames)
    }

    fn bytes_object(&self, object: u64) -> io::Result<Vec<u8>> {
        let size = usize::try_from(self.field(object, At::BytesSize)?).map_err(io::Error::other)?.min(MAX_TABLE_BYTES);
        self.memory.bytes(object.wrapping_add(self.layout.offset(At::BytesStart)), size)
    }

    /// Where the names of a function's variables are, and of what kind each is, in the order of their values.
    fn variables(&self, code: u64) -> io::Result<Vec<(u64, u8)>> {
        let names = |tuple: u64| {
            let items = tuple.wrapping_add(self.layout.offset(At::TupleItems));
            let count = self.field(tuple, At::TupleSize)?.min(MAX_TABLE_BYTES as u64);
            io::Result::Ok((0..count).map(move |index| items.wrapping_add(index * WORD)))
        };
        if self.layout.minor >= 11 {
            let kinds = self.bytes_object(self.pointer(code, At::CodeLocalKinds)?)?;
            return Ok(names(self.pointer(code, At::CodeLocalNames)?)?.zip(kinds).collect());
        }
        // Its own, those that functions inside it use, and those of the functions around it.
        let mut variables = Vec::new();
        for (offset, kind) in [(72, 0), (88, IN_CELL), (80, IN_CELL)] {
            variables.extend(names(self.memory.word(code.wrapping_add(offset))?)?.map(|name| (name, kind)));
        }
        Ok(variables)
    }

    /// The variables of a frame, and how many more it has.
    fn locals(&self, frame: u64, code: u64) -> io::Result<(Vec<Local>, usize)> {
        let values = frame.wrapping_add(self.layout.offset(At::FrameLocals));
        let (mut locals, mut more) = (Vec::new(), 0);
        for (index, (name, kind)) in (0..).zip(self.variables(code)?) {
            let mut value = self.memory.word(values.wrapping_add(index * WORD))? & !TAG_BITS;
            // Variables that closures share are in a cell, which may not have been made yet.
            if kind & IN_CELL != 0 && value != 0 && self.type_name(value)? == "cell" {
                value = self.memory.word(value.wrapping_add(self.layout.offset(At::ObjectSize)))? & !TAG_BITS;
            }
            if value == 0 || kind & HIDDEN != 0 {
                continue;
            }
            if locals.len() == MAX_LOCALS {
                more += 1;
                continue;
            }
            let name = self.string(self.memory.word(name)?)?;
            locals.push(Local { name: plain(&name, MAX_NAME_CHARS), value: self.shown(value) });
        }
        Ok((locals, more))
    }

    pub fn coroutine_state(&self, coroutine: u64) -> io::Result<CoroutineState> {
        let state = self.memory.byte(coroutine.wrapping_add(self.layout.offset(At::CoroutineState)))?.cast_signed();
        // The numbers of 3.14 were changed in 3.15.
        let state = if self.layout.minor == 14 { state + 3 } else { state };
        Ok(match (state, self.layout.minor) {
            (0, _) => CoroutineState::NotStarted,
            (1, _) => CoroutineState::Suspended,
            (2, _) | (3, 15) => CoroutineState::Awaiting,
            (3, 14) | (4, 15) => CoroutineState::Running,
            _ => CoroutineState::Ended,
        })
    }
}

/// The text of a value, with its class if that is not the plain one: such a class may have a `__repr__` of its own.
fn of_class(plain: &str, class: &str, text: String) -> String {
    if class == plain { text } else { format!("<{class} {text}>") }
}

/// A number as `repr` writes it, from how Rust writes it and how with an exponent.
fn float_shown(text: &str, with_exponent: &str) -> String {
    if text == "NaN" {
        return "nan".to_owned();
    }
    let Some((digits, exponent)) = text.contains('e').then(|| with_exponent.split_once('e')).flatten() else {
        return text.to_owned();
    };
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}

/// The line of an instruction, by a code object's own table: 0 when it has none.
fn line_at(table: &[u8], first_line: i64, instruction: u64) -> u32 {
    let mut bytes = table.iter().copied().peekable();
    let (mut line, mut end) = (first_line, 0);
    while let Some(byte) = bytes.next() {
        end += u64::from(byte & 7) * 2 + 2;
        let kind = byte >> 3 & 15;
        let mut number = || {
            let (mut value, mut shift) = (0_i64, 0);
            for byte in bytes.by_ref() {
                value |= i64::from(byte & 63) << shift;
                shift += 6;
                if byte & 64 == 0 || shift > 42 {
                    break;
                }
            }
            value
        };
        let signed = |value: i64| if value & 1 == 1 { -(value >> 1) } else { value >> 1 };
        let mut has_line = true;
        match kind {
            15 => has_line = false,
            14 => {
                line += signed(number());
                for _ in 0..3 {
                    number();
                }
            }
            13 => line += signed(number()),
            10..=12 => line += i64::from(kind) - 10,
            _ => {}
        }
        // What follows begins with a byte whose highest bit is set; columns, which nobody asked for, may too.
        let columns = match kind {
            10..=12 => 2,
            0..=9 => 1,
            _ => 0,
        };
        for _ in 0..columns {
            bytes.next();
        }
        if instruction < end {
            return if has_line { u32::try_from(line).unwrap_or(0) } else { 0 };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_a_code_objects_table() {
        // `def f():` at 10: two words at line 10, one at 11 (short), two at 14 with columns left out, one without a line.
        let table = [0b1101_0001, 0, 4, 0b1101_1000, 4, 8, 0b1110_1001, 6, 0b1111_1000];
        let at = |instruction| line_at(&table, 10, instruction);
        assert_eq!([at(0), at(2), at(4), at(6), at(8), at(10), at(12)], [10, 10, 11, 14, 14, 0, 0]);
    }

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let shown = |value: f64| float_shown(&format!("{value:?}"), &format!("{value:e}"));
        for (value, repr) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.5, "1.5"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.25e22, "-1.25e+22"),
            (1e100, "1e+100"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(shown(value), repr);
        }
    }

    #[test]
    fn tables_of_unknown_versions_are_refused() {
        let words = |version: u64, free: u64| {
            let mut words = vec![8; MAX_TABLE_WORDS];
            (words[1], words[2]) = (version, free);
            Layout::from_words(words)
        };
        assert_eq!(words(0x030e_0af0, 0).unwrap().minor, 14);
        assert_eq!(words(0x030f_02f0, 0).unwrap().minor, 15);
        assert_eq!(words(0x0310_00a0, 0).unwrap_err(), "the layout of Python 3.16 is not known");
        assert!(words(0x030e_0af0, 1).unwrap_err().contains("free-threaded"));
        let mut senseless = vec![u64::MAX; MAX_TABLE_WORDS];
        (senseless[1], senseless[2]) = (0x030f_02f0, 0);
        assert!(Layout::from_words(senseless).unwrap_err().contains("no sense"));
    }
}
