//! Enums of numbers that the kernel or the instruction set defines, each with a name.

/// Defines an enum from rows `Variant = number "name"`, with its list `ALL`. The names of its methods follow:
/// to the number and from it, and to the name.
macro_rules! numbered {
    (
        $(#[$meta:meta])*
        pub enum $enum:ident {
            $($(#[$doc:meta])* $variant:ident = $value:literal $text:literal,)*
        }
        $to:ident: $number:ty, $from:ident;
        $(#[$name_meta:meta])* $name:ident
    ) => {
        $(#[$meta])*
        pub enum $enum {
            $($(#[$doc])* $variant = $value,)*
        }

        impl $enum {
            /// All values of this enum.
            pub const ALL: [$enum; [$($value),*].len()] = [$($enum::$variant,)*];

            /// Returns the number.
            #[must_use]
            pub const fn $to(self) -> $number {
                self as $number
            }

            /// Returns the value with this number, or `None` if it is not in this enum.
            #[must_use]
            pub const fn $from(number: $number) -> Option<$enum> {
                match number {
                    $($value => Some($enum::$variant),)*
                    _ => None,
                }
            }

            $(#[$name_meta])*
            #[must_use]
            pub const fn $name(self) -> &'static str {
                match self {
                    $($enum::$variant => $text,)*
                }
            }
        }
    };
}
pub(crate) use numbered;
