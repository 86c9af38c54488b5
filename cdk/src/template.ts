import * as fs from "node:fs";
import * as path from "node:path";

// biome-ignore lint/suspicious/noExplicitAny: parts of a template have any shape
export type Part = any;
/** Values of the template's parameters. */
export type Values = Record<string, Part>;

/** The template that the construct includes, which `template.py` makes of the SAM template. */
export class Template {
  private readonly template = JSON.parse(fs.readFileSync(path.join(__dirname, "..", "template.json"), "utf8"));

  /** The parameters of the template. */
  get parameters(): { [name: string]: { Type: string; Default: Part; MinValue?: number; MaxValue?: number } } {
    return this.template.Parameters;
  }

  /** Throws the message of the first rule that refuses these values. */
  public check(values: Values): void {
    for (const { RuleCondition, Assertions } of Object.values<Part>(this.template.Rules)) {
      const refused =
        this.holds(RuleCondition, values) && Assertions.find(({ Assert }: Part) => !this.holds(Assert, values));
      if (refused) {
        throw new Error(`${refused.AssertDescription}.`);
      }
    }
  }

  /** The template with its conditions decided by these values. It keeps its parameters. */
  public decided(values: Values): Part {
    const { AWSTemplateFormatVersion, Parameters, Resources, Outputs } = this.template;
    const decide = (part: Part): Part => {
      if (Array.isArray(part)) {
        return part.map(decide).filter((member) => !isNoValue(member));
      }
      if (typeof part !== "object" || part === null) {
        return part;
      }
      if (part["Fn::If"]) {
        const [Condition, then, otherwise] = part["Fn::If"];
        return decide(this.holds({ Condition }, values) ? then : otherwise);
      }
      return Object.fromEntries(
        Object.entries(part)
          .map(([name, member]) => [name, decide(member)])
          .filter(([, member]) => !isNoValue(member)),
      );
    };
    const there = (parts: { [name: string]: Part }): Part =>
      Object.fromEntries(
        Object.entries(parts).flatMap(([name, { Condition, ...part }]) =>
          !Condition || this.holds({ Condition }, values) ? [[name, decide(part)]] : [],
        ),
      );
    return { AWSTemplateFormatVersion, Parameters, Resources: there(Resources), Outputs: there(Outputs) };
  }

  private holds(condition: Part, values: Values): boolean {
    const [[name, operands]] = Object.entries<Part>(condition);
    const holds = (operand: Part) => this.holds(operand, values);
    const value = (operand: Part): Part => {
      if (operand["Fn::Select"]) {
        return value(operand["Fn::Select"][1])[operand["Fn::Select"][0]];
      }
      return operand.Ref ? values[operand.Ref] : operand;
    };
    switch (name) {
      case "Condition":
        return holds(this.template.Conditions[operands]);
      case "Fn::Equals":
        return value(operands[0]) === value(operands[1]);
      case "Fn::Contains":
        return value(operands[0]).includes(value(operands[1]));
      case "Fn::Not":
        return !holds(operands[0]);
      case "Fn::And":
        return operands.every(holds);
      case "Fn::Or":
        return operands.some(holds);
      default:
        throw new Error(`The template has a condition of ${name}.`);
    }
  }
}

function isNoValue(part: Part): boolean {
  return part?.Ref === "AWS::NoValue";
}
