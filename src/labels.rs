//! Enums whose variants have fixed texts, for logs, metrics and paths.

/// Defines an enum with a label for each variant. Each variant is the index of its own entry in `ALL`.
macro_rules! labelled_enum {
    ($(#[$doc:meta])* $vis:vis $name:ident { $($(#[$variant_doc:meta])* $variant:ident $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All variants, in order.
            $vis const ALL: [Self; [$($label),*].len()] = [$(Self::$variant),*];

            /// The text of the variant.
            $vis fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}

pub(crate) use labelled_enum;
