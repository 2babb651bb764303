use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

type Folder = Rc<RefCell<BTreeMap<String, Vec<u8>>>>;

/// Writes `bytes` in parts into a folder that may contain earlier parts. Returns the list and the bytes reused.
fn write(folder: &Folder, bytes: &[u8], pieces: usize) -> (PartList, u64) {
    let name = Rc::new(RefCell::new(String::new()));
    let (opened, now) = (Rc::clone(folder), Rc::clone(&name));
    let open = move |part: &str| {
        *now.borrow_mut() = part.to_owned();
        Ok(Cursor::new(opened.borrow().get(part).cloned().unwrap_or_default()))
    };
    let folder_clone = Rc::clone(folder);
    let keep = move |file: Cursor<Vec<u8>>, bytes: u64| {
        let mut content = file.into_inner();
        content.truncate(bytes as usize);
        folder_clone.borrow_mut().insert(name.borrow().clone(), content);
        Ok(())
    };
    let mut writer = PartsWriter::new(PartList::empty(Timestamp(1), MIN_PART_BYTES), open, keep);
    for piece in bytes.chunks(pieces) {
        writer.write_all(piece).unwrap();
    }
    let WrittenParts { list, reused, .. } = writer.end().unwrap();
    (list, reused)
}

fn read(folder: &Folder, list: &PartList) -> io::Result<Vec<u8>> {
    let open = |name: &str| folder.borrow().get(name).cloned().map(Cursor::new).ok_or(io::ErrorKind::NotFound.into());
    let mut all = Vec::new();
    PartsReader::new(list.clone(), open).read_to_end(&mut all)?;
    Ok(all)
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 % 253) as u8).collect()
}

fn sizes(folder: &Folder) -> impl Fn(&str) -> io::Result<Option<u64>> {
    |name| Ok(folder.borrow().get(name).map(|bytes| bytes.len() as u64))
}

#[test]
fn parts_are_read_as_one_stream_and_a_damaged_part_is_named() {
    let (folder, all) = (Folder::default(), bytes(2 * MIN_PART_BYTES as usize + 5));
    let (list, reused) = write(&folder, &all, 70_000);
    assert_eq!((list.parts.len(), reused, list.bytes()), (3, 0, all.len() as u64));
    let list = PartList::read(&list.write()).unwrap();
    assert!(list.check_sizes(sizes(&folder)).is_ok());
    assert_eq!(read(&folder, &list).unwrap(), all);
    folder.borrow_mut().get_mut("part-00002").unwrap()[9] ^= 1;
    assert!(read(&folder, &list).unwrap_err().to_string().starts_with("part-00002 has changed"));
    folder.borrow_mut().get_mut("part-00003").unwrap().pop();
    folder.borrow_mut().remove("part-00001");
    let missing = list.check_sizes(sizes(&folder)).unwrap_err().to_string();
    assert_eq!(missing, "part-00001 is missing; part-00003 has 4 bytes instead of 5");
}

#[test]
fn a_run_after_an_interruption_reuses_the_parts_already_written() {
    let (folder, all) = (Folder::default(), bytes(3 * MIN_PART_BYTES as usize));
    write(&folder, &all, 70_000);
    folder.borrow_mut().get_mut("part-00002").unwrap().truncate(100_000);
    folder.borrow_mut().remove("part-00003");
    let (list, reused) = write(&folder, &all, 50_000);
    // Bytes are compared by piece: 22 whole pieces agree before the first that differs.
    assert_eq!(reused, 22 * 50_000);
    assert_eq!(read(&folder, &list).unwrap(), all);
}

#[test]
fn a_list_that_leads_elsewhere_is_refused() {
    let (folder, all) = (Folder::default(), bytes(MIN_PART_BYTES as usize + 5));
    let (list, _) = write(&folder, &all, 70_000);
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
        before in 0usize..(3 << 20),
        differs_at in any::<prop::sample::Index>(),
        pieces in 1000usize..300_000,
    ) {
        let (folder, all) = (Folder::default(), bytes(length));
        let mut other = bytes(before.max(1));
        let index = differs_at.index(other.len());
        other[index] ^= 0xff;
        write(&folder, &other, pieces);
        let (list, _) = write(&folder, &all, pieces);
        prop_assert_eq!(read(&folder, &list).unwrap(), all);
    }
}
