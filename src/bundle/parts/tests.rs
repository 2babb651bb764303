use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

type Folder = Rc<RefCell<BTreeMap<String, Vec<u8>>>>;

/// Writes `bytes` in parts into a folder that may contain earlier parts. Returns the list and the bytes reused.
fn write(folder: &Folder, bytes: &[u8], chunk_bytes: usize) -> (PartList, u64) {
    let open_name = Rc::new(RefCell::new(String::new()));
    let (folder_to_read, name_to_set) = (Rc::clone(folder), Rc::clone(&open_name));
    let open = move |part: &str| {
        *name_to_set.borrow_mut() = part.to_owned();
        Ok(Cursor::new(folder_to_read.borrow().get(part).cloned().unwrap_or_default()))
    };
    let folder_to_write = Rc::clone(folder);
    let finish = move |file: Cursor<Vec<u8>>, bytes: u64| {
        let mut content = file.into_inner();
        content.truncate(bytes as usize);
        folder_to_write.borrow_mut().insert(open_name.borrow().clone(), content);
        Ok(())
    };
    let mut writer = PartsWriter::new(PartList::empty(Timestamp(1), MIN_PART_BYTES), open, finish);
    for chunk in bytes.chunks(chunk_bytes) {
        writer.write_all(chunk).unwrap();
    }
    let WrittenParts { list, reused, .. } = writer.end().unwrap();
    (list, reused)
}

fn read(folder: &Folder, list: &PartList) -> io::Result<Vec<u8>> {
    let open = |name: &str| folder.borrow().get(name).cloned().map(Cursor::new).ok_or(io::ErrorKind::NotFound.into());
    let mut stream = Vec::new();
    PartsReader::new(list.clone(), open).read_to_end(&mut stream)?;
    Ok(stream)
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 % 253) as u8).collect()
}

fn sizes(folder: &Folder) -> impl Fn(&str) -> io::Result<Option<u64>> {
    |name| Ok(folder.borrow().get(name).map(|bytes| bytes.len() as u64))
}

#[test]
fn parts_are_read_as_one_stream_and_a_damaged_part_is_named() {
    let (folder, stream) = (Folder::default(), bytes(2 * MIN_PART_BYTES as usize + 5));
    let (list, reused) = write(&folder, &stream, 70_000);
    assert_eq!((list.parts.len(), reused, list.bytes()), (3, 0, stream.len() as u64));
    let list = PartList::read(&list.write()).unwrap();
    assert!(list.check_sizes(sizes(&folder)).is_ok());
    assert_eq!(read(&folder, &list).unwrap(), stream);
    folder.borrow_mut().get_mut("part-00002").unwrap()[9] ^= 1;
    assert!(read(&folder, &list).unwrap_err().to_string().starts_with("part-00002 has changed"));
    folder.borrow_mut().get_mut("part-00003").unwrap().pop();
    folder.borrow_mut().remove("part-00001");
    let missing = list.check_sizes(sizes(&folder)).unwrap_err().to_string();
    assert_eq!(missing, "part-00001 is missing; part-00003 has 4 bytes instead of 5");
}

#[test]
fn a_run_after_an_interruption_reuses_the_parts_already_written() {
    let (folder, stream) = (Folder::default(), bytes(3 * MIN_PART_BYTES as usize));
    write(&folder, &stream, 70_000);
    folder.borrow_mut().get_mut("part-00002").unwrap().truncate(100_000);
    folder.borrow_mut().remove("part-00003");
    let (list, reused) = write(&folder, &stream, 50_000);
    // Bytes are compared chunk by chunk: 22 whole chunks match before the first that differs.
    assert_eq!(reused, 22 * 50_000);
    assert_eq!(read(&folder, &list).unwrap(), stream);
}

#[test]
fn a_list_with_invalid_names_or_sizes_is_refused() {
    let (folder, stream) = (Folder::default(), bytes(MIN_PART_BYTES as usize + 5));
    let (list, _) = write(&folder, &stream, 70_000);
    let refused = |change: &dyn Fn(&mut PartList)| {
        let mut list = list.clone();
        change(&mut list);
        PartList::read(&list.write()).unwrap_err().to_string()
    };
    assert!(refused(&|list| list.parts[0].name = "../part-00001".to_owned()).contains("is not named part-00001"));
    assert!(refused(&|list| list.parts[0].bytes = 1).contains("an invalid size"));
    assert!(refused(&|list| list.part_bytes = 1).contains("too small"));
    assert!(PartList::read(b"{}").is_err());
    let unfinished = PartList { complete: false, ..list };
    assert!(matches!(unfinished.check_sizes(sizes(&folder)), Err(BadParts::Incomplete)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn parts_are_correct_after_any_earlier_contents(
        length in 1usize..(3 << 20),
        earlier_length in 0usize..(3 << 20),
        changed_byte in any::<prop::sample::Index>(),
        chunk_bytes in 1000usize..300_000,
    ) {
        let (folder, stream) = (Folder::default(), bytes(length));
        let mut earlier = bytes(earlier_length.max(1));
        let index = changed_byte.index(earlier.len());
        earlier[index] ^= 0xff;
        write(&folder, &earlier, chunk_bytes);
        let (list, _) = write(&folder, &stream, chunk_bytes);
        prop_assert_eq!(read(&folder, &list).unwrap(), stream);
    }
}
