//! A store that takes nothing although there is room: a size limit, a folder that is none, a part of it that cannot be
//! written.
