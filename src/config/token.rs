//! The block `token` of a route: how its token is written, and which numbers it believes.

use super::problems::Report;
use super::route_file::TokenFile;
use super::units::CountOrNone;
use crate::routing::{Jump, Token, TokenBounds, TokenFormat};

/// The format and the bounds. `at`: the route.
pub(super) fn settings(
    at: &str,
    file: Option<TokenFile>,
    report: &mut Report,
) -> (TokenFormat, TokenBounds) {
    let file = file.unwrap_or_default();
    let format = file.format.map_or(TokenFormat::Decimal, TokenFormat::from);
    let mut bounds = TokenBounds::of(format);
    let jump = number(&format!("{at}.token.max_jump"), file.max_jump, report);
    if let Some(jump) = jump {
        bounds.jump = jump.map_or(Jump::Any, |jump| Jump::Most(jump.get()));
    }
    let max = number(&format!("{at}.token.max"), file.max, report);
    if let Some(max) = max {
        bounds.max = max.unwrap_or(Token::MAX);
    }
    (format, bounds)
}

/// A number of 1 and more; `Some(None)`: no bound.
#[expect(
    clippy::option_option,
    reason = "two kinds of nothing: the default, and none wanted"
)]
fn number(at: &str, given: Option<CountOrNone>, report: &mut Report) -> Option<Option<Token>> {
    let Some(number) = given?.0 else {
        return Some(None);
    };
    let token = i64::try_from(number).ok().and_then(Token::new);
    match token {
        Some(token) if number > 0 => Some(Some(token)),
        Some(_) => {
            report.error(
                at,
                "no token would ever raise a mark",
                "a number that your lock service does not get to, or none",
            );
            None
        }
        None => {
            report.error(
                at,
                format!("{number} is above 2^63-1, which no token is"),
                "9223372036854775807 at most, or none",
            );
            None
        }
    }
}
