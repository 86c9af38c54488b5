import * as fs from 'fs';
import * as path from 'path';

/** Values of the template's parameters. */
export interface Values {
  [parameter: string]: any;
}

/** The template that the construct includes, which `template.py` makes of the SAM template. */
export class Template {
  private readonly template = JSON.parse(fs.readFileSync(path.join(__dirname, '..', 'template.json'), 'utf8'));

  /** The parameters of the template. */
  get parameters(): { [name: string]: { Type: string; Default: any; MinValue?: number; MaxValue?: number } } {
    return this.template.Parameters;
  }

  /** Throws the message of the first rule that refuses these values. */
  public check(values: Values): void {
    for (const { RuleCondition, Assertions } of Object.values<any>(this.template.Rules)) {
      const refused = this.holds(RuleCondition, values) && Assertions.find(({ Assert }: any) => !this.holds(Assert, values));
      if (refused) {
        throw new Error(`${refused.AssertDescription}.`);
      }
    }
  }

  /** The template with its conditions decided by these values. It keeps its parameters. */
  public decided(values: Values): any {
    const { AWSTemplateFormatVersion, Parameters, Resources, Outputs } = this.template;
    const decide = (part: any): any => {
      if (Array.isArray(part)) {
        return part.map(decide).filter((member) => !isNoValue(member));
      }
      if (typeof part !== 'object' || part === null) {
        return part;
      }
      if (part['Fn::If']) {
        const [Condition, then, otherwise] = part['Fn::If'];
        return decide(this.holds({ Condition }, values) ? then : otherwise);
      }
      return Object.fromEntries(Object.entries(part).map(([name, member]) => [name, decide(member)]).filter(([, member]) => !isNoValue(member)));
    };
    const there = (parts: { [name: string]: any }): any =>
      Object.fromEntries(Object.entries(parts).flatMap(([name, { Condition, ...part }]) =>
        !Condition || this.holds({ Condition }, values) ? [[name, decide(part)]] : []));
    const resources = there(Resources);
    for (const resource of Object.values<any>(resources).filter(({ DeletionPolicy }) => DeletionPolicy?.Ref)) {
      resource.DeletionPolicy = values[resource.DeletionPolicy.Ref];
    }
    return { AWSTemplateFormatVersion, Parameters, Resources: resources, Outputs: there(Outputs) };
  }

  private holds(condition: any, values: Values): boolean {
    const [[name, operands]] = Object.entries<any>(condition);
    const holds = (operand: any) => this.holds(operand, values);
    const value = (operand: any): any => {
      if (operand['Fn::Select']) {
        return value(operand['Fn::Select'][1])[operand['Fn::Select'][0]];
      }
      return operand.Ref ? values[operand.Ref] : operand;
    };
    switch (name) {
      case 'Condition': return holds(this.template.Conditions[operands]);
      case 'Fn::Equals': return value(operands[0]) === value(operands[1]);
      case 'Fn::Contains': return value(operands[0]).includes(value(operands[1]));
      case 'Fn::Not': return !holds(operands[0]);
      case 'Fn::And': return operands.every(holds);
      case 'Fn::Or': return operands.some(holds);
      default: throw new Error(`The template has a condition of ${name}.`);
    }
  }
}

function isNoValue(part: any): boolean {
  return part?.Ref === 'AWS::NoValue';
}
